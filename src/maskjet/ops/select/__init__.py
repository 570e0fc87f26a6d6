"""Class logits and boxes to detections: threshold, rank, map classes, boxes to pixels."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from maskjet.checks import as_int, check_count
from maskjet.config import Implementation
from maskjet.errors import InputError, translate_errors
from maskjet.ops.canvas import Canvas, check_canvases
from maskjet.ops.gpu import make_op, table
from maskjet.ops.record import FLOATS, Variant, describe, needs_cpu
from maskjet.ops.select import cpu, reference
from maskjet.ops.selection import ImageSizes, Selection, SizeTable, check_image_sizes

PerClass = torch.Tensor | Sequence[float]
"""One value per class logit."""
_MOST_ROWS = 2**28  # rows of a selection: its values must be countable in 32 bits


def select(
    logits: torch.Tensor,
    boxes: torch.Tensor,
    image_sizes: ImageSizes,
    *,
    threshold: float | PerClass = 0.5,
    class_map: PerClass | None = None,
    max_detections: int = 100,
    num_select: int | None = None,
    canvases: Sequence[Canvas] | None = None,
    implementation: Implementation = "auto",
) -> Selection:
    """Choose the detections of each image, exactly as rfdetr 1.11.2's PostProcess does.

    Scores are the sigmoids of all query-class pairs. The `num_select` best are ranked, ties by ascending flat index
    (query × C + class). Pairs that don't exceed the threshold or whose class is dropped go; the first `max_detections`
    of the others stay. NaN logits rank first, as in `torch.sort`, and never pass. A NaN box coordinate becomes 0.

    Args:
        logits: float32, float16 or bfloat16 [B, Q, C].
        boxes: Floating [B, Q, 4] cxcywh, 0..1 of the network's input. Both may have any strides.
        image_sizes: (height, width) in pixels, one per image.
        threshold: Scores must exceed it, 0..1: one number, or one per class. No score exceeds NaN.
        class_map: int, one per class: the class id to report, -1 to drop the class. None reports the index.
            Checking a tensor of another type than int32 waits for its device.
        max_detections: Rows of the result, at least 1.
        num_select: How many of the best pairs are considered, at least 1; None for all.
        canvases: Per image, what the network's input showed, as `Region.canvas` gives for a letterbox; None: the image.
        implementation: "auto", "reference", "triton" or "cpu".

    Returns:
        The detections on the logits' device, most confident first, boxes clamped to the image.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these logits.

    Equal to the reference: counts, queries and classes exactly, scores and boxes within two float32 ULP.
    """
    _check_predictions(logits, boxes)
    batch, queries, classes = logits.shape
    sizes = check_image_sizes(image_sizes, batch)
    check_count("max_detections", as_int(max_detections))
    check_rows(batch, max_detections)
    if num_select is not None:
        check_count("num_select", as_int(num_select))
    thresholds = _per_class("threshold", threshold, classes, torch.float32, logits.device)
    mapping = range(classes) if class_map is None else _whole_numbers(class_map)
    selection: Selection = RECORD.choose(implementation, logits).run(
        logits.detach(),
        boxes.detach(),
        SizeTable.of(sizes, logits.device, check_canvases(canvases, sizes)),
        thresholds=thresholds,
        class_map=_per_class("class_map", mapping, classes, torch.int32, logits.device),
        max_detections=int(max_detections),
        num_select=min(int(num_select or queries * classes), queries * classes),
    )
    return selection


def check_rows(batch: int, max_detections: int) -> None:
    """Raise an error if a selection's size exceeds 32-bit counters.

    Raises:
        InputError: There are too many.
    """
    if batch * max_detections > _MOST_ROWS:
        raise InputError(f"max_detections must be at most {_MOST_ROWS // batch:,} here, got {max_detections:,}.")


def _check_predictions(logits: torch.Tensor, boxes: torch.Tensor) -> None:
    if not isinstance(logits, torch.Tensor) or logits.ndim != 3 or not logits.is_floating_point():
        raise InputError(f"logits must be a floating tensor [B, Q, C], got {describe(logits)}.")
    is_alike = isinstance(boxes, torch.Tensor) and boxes.is_floating_point() and boxes.device == logits.device
    if not is_alike or boxes.shape != (*logits.shape[:2], 4):
        raise InputError(
            f"boxes must be {[*logits.shape[:2], 4]} on {logits.device} to go with the logits, got {describe(boxes)}."
        )


def _per_class(
    name: str, value: float | PerClass | range, classes: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.ndim:
        if value.shape != (classes,):
            raise InputError(f"{name} must have one value per class, {classes}, got {list(value.shape)}.")
        return value.to(device, dtype).contiguous()
    with translate_errors(InputError, f"{name} must be numbers"):
        values = (float(value),) * classes if isinstance(value, int | float | torch.Tensor) else tuple(value)
        if len(values) != classes:
            raise InputError(f"{name} must have one value per class, {classes}, got [{len(values)}].")
        return table(values, dtype, device)


def _whole_numbers(class_map: Any) -> Any:
    """Check that a class map converts to int32 without loss, and return it."""
    if not isinstance(class_map, torch.Tensor):
        with translate_errors(InputError, "class_map must be whole numbers, one per class"):
            return tuple(operator.index(number) for number in class_map)
    if class_map.dtype == torch.int32:
        return class_map
    if class_map.is_floating_point() or class_map.is_complex() or class_map.dtype == torch.bool:
        raise InputError(f"class_map must be int, got {describe(class_map)}.")
    if class_map.numel() and not -(2**31) <= int(class_map.min()) <= int(class_map.max()) < 2**31:
        raise InputError("class_map must hold class ids of 32 bits.")
    return class_map


RECORD = make_op(select, Variant(reference.select), dtypes=FLOATS, cpu=Variant(cpu.select, needs_cpu))
