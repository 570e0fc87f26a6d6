"""Files that rfdetr exported: they say nothing of their network but the shapes of inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from maskjet.errors import InputError
from maskjet.spec import COCO_CLASS_NAMES, SPECS, ModelSpec, shown

_COCO_LOGITS = 91


def rfdetr_spec(input_hw: tuple[int, int], outputs: Sequence[tuple[int | None, ...]]) -> ModelSpec:
    """The spec of a network that rfdetr 1.11 exported.

    It is that of the named size with these queries and this input; or else that of one whose patches fill the input.
    91 logits are COCO's classes; other classes have no names. Mean and std are ImageNet's, and frames are stretched, as
    rfdetr's are. `outputs` are the shapes after the batch of logits, boxes and, if it has them, mask logits; None for a
    size that is free.

    Raises:
        InputError: No RF-DETR has such shapes.
    """
    queries, classes = outputs[0] if len(outputs[0]) == 2 else (None, None)
    if queries is None or classes is None:
        raise InputError(f"labels must be [batch, queries, classes], got {shown(list(outputs[0]))} after the batch.")
    fitting = [
        spec
        for spec in SPECS.values()
        if spec.has_masks == (len(outputs) > 2)
        and not any(side % (spec.patch_size * spec.windows) for side in input_hw)
    ]
    if not fitting:
        raise InputError(f"its input must have sides that patches of RF-DETR fill, got {shown(list(input_hw))}.")
    closest = min(fitting, key=lambda spec: (spec.queries != queries, spec.input_hw != input_hw))
    return replace(
        closest,
        input_size=input_hw,
        queries=queries,
        class_logits=classes,
        class_names=COCO_CLASS_NAMES if classes == _COCO_LOGITS else {},
    )
