"""Compare a rung's detections, masks and RLE strings with the references', by the ops' tolerances."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from benchmarks.contest import Entry
from benchmarks.rungs import Instances, Postprocess, Request, Rung, as_instances
from benchmarks.workloads import QUERIES
from maskjet import ops
from maskjet.ops.encode_masks.reference import encode_dense
from tests.ops.cases import CHECKS
from tests.ops.cases.paste_masks import tolerance_used

_ROUNDING = 0.5 + 1e-3  # pixels that a rounded box may be off


def enter(rung: Rung, call: Postprocess) -> Entry[Request]:
    """Make a contest's entry of a rung's call, with or without encoding of its masks.

    The entry's share is relative to the rung's tolerance, and infinite if the rung finds other detections.
    """

    def share(request: Request, expected: tuple[Instances, list[bytes]], actual: Instances) -> float:
        return _share(request, *expected, actual, rung) / rung.tolerance

    return Entry(call, share)


def expect(request: Request) -> tuple[Instances, list[bytes]]:
    """Compute the references' detections with dense masks, and the masks as RLE strings."""
    selection = ops.select(
        request.logits,
        request.boxes,
        [request.size_hw],
        threshold=request.thresholds,
        num_select=QUERIES,
        implementation="reference",
    )
    masks = ops.paste_masks(request.mask_logits, selection, [request.size_hw])[0][0]
    return as_instances(selection, masks), encode_dense(masks)


def _share(request: Request, expected: Instances, strings: list[bytes], actual: Instances, rung: Rung) -> float:
    """Largest difference as a share of the ops' tolerances; infinite if other detections were found."""
    count = int(expected.count)
    if int(actual.count) != count:
        return math.inf
    if rung.rounds_boxes:
        off = (actual.xyxy[:count].cpu() - expected.xyxy[:count].cpu()).abs()
        if not bool((off <= _ROUNDING).all()):
            return math.inf
        actual = replace(actual, xyxy=expected.xyxy)
    assert expected.query is not None
    sizes, query = [request.size_hw], expected.query[:count]
    selections = (_as_selection(found, count, expected.query) for found in (expected, actual))
    used = CHECKS["select"].tolerance_used({"image_sizes": sizes}, *selections)
    inputs: dict[str, Any] = {"mask_logits": request.mask_logits, "query": [query], "image_sizes": sizes}
    if isinstance(actual.masks, list):
        of_masks = CHECKS["encode_masks"].tolerance_used(inputs, [strings], [actual.masks])
    else:
        pasted = ([_with_flags(found.masks, count)] for found in (expected, actual))
        of_masks = tolerance_used(inputs, *pasted)
    return max(used, of_masks)


def _as_selection(found: Instances, count: int, query: torch.Tensor) -> ops.Selection:
    """Convert to a `Selection` on the CPU, with the given queries if it has none; its masks show wrong ones."""
    own = query if found.query is None else found.query
    return ops.Selection(
        count=torch.tensor([count]),
        query=own[None, :count].int().cpu(),  # some peers return this on the host
        class_id=found.class_id[None, :count].int().cpu(),
        confidence=found.confidence[None, :count].cpu(),
        xyxy=found.xyxy[None, :count].cpu(),
    )


def _with_flags(masks: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    dense = masks[:count].view(torch.uint8)
    return dense, dense.flatten(1).any(dim=1)
