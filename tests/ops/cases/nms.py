"""Inputs on which every implementation of nms must agree, position by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from maskjet.ops.nms.reference import Kept


def _case(
    batch: int = 1,
    boxes: int = 90,
    *,
    spread: float = 100.0,
    edit: Callable[[torch.Tensor], object] = torch.Tensor.size,
    counts: list[int] | None = None,
    groups: int = 1,
    iou_threshold: float = 0.5,
    **options: Any,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(batch * 1000 + boxes)
        corner = spread * torch.rand(batch, boxes, 2, generator=generator)
        found = torch.cat((corner, corner + 5 + 40 * torch.rand(batch, boxes, 2, generator=generator)), dim=2)
        edit(found)
        number = torch.randint(groups, (batch, boxes), dtype=torch.int32, generator=generator)
        inputs: dict[str, Any] = {"boxes": found.to(device), "iou_threshold": iou_threshold, **options}
        if groups > 1:
            inputs["groups"] = number.to(device)
        if counts is not None:
            inputs["count"] = torch.tensor(counts, dtype=torch.int32, device=device)
        return inputs

    return build


def _chain(boxes: torch.Tensor) -> None:
    """Each box overlaps the next, so every second one stays, and each decision depends on the one before."""
    boxes[..., 0] = 3.0 * torch.arange(boxes.shape[1])
    boxes[..., 2] = boxes[..., 0] + 10
    boxes[..., 1], boxes[..., 3] = 0, 10


def _at_the_threshold(boxes: torch.Tensor) -> None:
    """Every second box is half of the others: their IoU is exactly 0.5, which a threshold of 0.5 lets stay."""
    boxes[:, ::2] = torch.tensor([0.0, 0, 20, 10])
    boxes[:, 1::2] = torch.tensor([0.0, 0, 10, 10])


def _without_area(boxes: torch.Tensor) -> None:
    boxes[:, ::3, 2:] = boxes[:, ::3, :2]


def _not_numbers(boxes: torch.Tensor) -> None:
    boxes[:, ::4, 1] = torch.nan
    boxes[:, 1::4, 2] = torch.inf


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "some stay": _case(),
    "all stay": _case(spread=100_000),
    "one stays": _case(edit=lambda boxes: boxes.copy_(boxes[:, :1].clone().expand_as(boxes))),
    "one box": _case(boxes=1),
    "no box": _case(boxes=0, max_output=5),
    "a chain": _case(boxes=200, edit=_chain),
    "at the threshold": _case(boxes=40, edit=_at_the_threshold),
    "without area": _case(edit=_without_area),
    "not numbers": _case(edit=_not_numbers),
    "enough stay early": _case(boxes=150, spread=400, max_output=7),
    "more may stay than there are": _case(boxes=33, max_output=50),
    "groups": _case(boxes=130, groups=4),
    "groups of their own": _case(boxes=64, groups=100_000),
    "batch": _case(batch=3, boxes=65, counts=[65, 0, 31], groups=3, iou_threshold=0.7),
    "threshold 0": _case(iou_threshold=0.0),
    "threshold 1": _case(iou_threshold=1.0, edit=_at_the_threshold),
    "two tiles of words": _case(boxes=1100, spread=900, iou_threshold=0.3, max_output=1100),
}


def tolerance_used(_inputs: dict[str, Any], expected: Kept, actual: Kept) -> float:
    """0 if the same boxes stay, else infinite."""
    fields = (expected.count, expected.index, actual.count, actual.index)
    for count, rows, other_count, other_rows in zip(*fields, strict=True):
        if count != other_count or not torch.equal(rows[:count], other_rows[:count]):
            return float("inf")
    return 0.0


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of boxes and groups, and of the positions returned."""
    boxes = inputs["boxes"]
    batch, most = boxes.shape[:2]
    return int(20 * batch * most + 4 * batch * (inputs.get("max_output") or most))
