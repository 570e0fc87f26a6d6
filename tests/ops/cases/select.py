"""Inputs on which every implementation of select must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from maskjet.ops.canvas import Letterbox
from maskjet.ops.selection import Selection

# Scores and boxes are a handful of float32 operations each: two ULP, of 1 and of the largest coordinate.
_TOLERANCE_CONFIDENCE = 2.4e-7
_TOLERANCE_BOX = 2.4e-7


def _case(
    batch: int = 1,
    queries: int = 20,
    classes: int = 7,
    *,
    edit: Callable[[torch.Tensor], object] = torch.Tensor.size,
    dtype: torch.dtype = torch.float32,
    is_letterboxed: bool = False,
    **options: Any,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(batch * 1000 + queries)
        logits = 3 * torch.randn(batch, queries, classes, generator=generator)
        edit(logits)
        boxes = torch.rand(batch, queries, 4, generator=generator) * 1.2 - 0.1  # some reach beyond the image
        sizes = [(240 + 50 * image, 320 - 7 * image) for image in range(batch)]
        given = {"logits": logits.to(device, dtype), "boxes": boxes.to(device), "image_sizes": sizes, **options}
        if is_letterboxed:
            given["canvases"] = [Letterbox().region(size, (96, 64)).canvas(size, (96, 64)) for size in sizes]
        return given

    return build


def _some_nan(logits: torch.Tensor) -> None:
    logits[:, 2, 1] = logits[:, 9, 3] = torch.nan


def _few_values(logits: torch.Tensor) -> None:
    logits.round_()


def _saturated(logits: torch.Tensor) -> None:
    logits.abs_().mul_(100)


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "some pass": _case(),
    "none pass": _case(threshold=1.0),
    "all pass": _case(threshold=0.0, max_detections=500),
    "more pass than fit": _case(threshold=0.1, max_detections=5),
    "one pair": _case(queries=1, classes=1, threshold=0.0),
    "ties": _case(edit=_few_values, threshold=0.3),
    "saturated ties": _case(edit=_saturated, num_select=30),
    "nan": _case(edit=_some_nan, threshold=0.2, num_select=12),
    "all nan": _case(edit=lambda logits: logits.fill_(torch.nan)),
    "infinite": _case(edit=lambda logits: logits[:, ::3].fill_(torch.inf)),
    "limited": _case(threshold=0.2, num_select=10),
    "threshold per class": _case(threshold=[0.9, 0.1, 0.5, 0.5, 0.2, 1.0, 0.7], num_select=25),
    "class map": _case(class_map=[5, -1, 0, 3, -1, 2, 2], max_detections=8),
    "batch": _case(batch=3, queries=33, classes=5),
    "letterboxes": _case(batch=3, queries=33, classes=5, threshold=0.3, is_letterboxed=True),
    "float16": _case(dtype=torch.float16),
    "bfloat16": _case(dtype=torch.bfloat16),
}


def tolerance_used(inputs: dict[str, Any], expected: Selection, actual: Selection) -> float:
    """Infinite if a count, query or class differs, else the largest share of a score's or box's tolerance."""
    used = 0.0
    for image, size in enumerate(inputs["image_sizes"]):
        count = int(expected.count[image])
        if int(actual.count[image]) != count:
            return float("inf")
        for name in ("query", "class_id"):
            if not torch.equal(getattr(expected, name)[image, :count], getattr(actual, name)[image, :count]):
                return float("inf")
        if count:
            scores = (expected.confidence - actual.confidence)[image, :count].abs() / _TOLERANCE_CONFIDENCE
            largest = max(size) if "canvases" not in inputs else max(*size, *inputs["canvases"][image])
            boxes = (expected.xyxy - actual.xyxy)[image, :count].abs() / (_TOLERANCE_BOX * largest)
            used = max(used, *(float(part.nan_to_num(nan=torch.inf).max()) for part in (scores, boxes)))
    return used


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of logits, boxes and the selection."""
    logits, boxes = inputs["logits"], inputs["boxes"]
    rows = logits.shape[0] * inputs.get("max_detections", 100)
    return int(logits.numel() * logits.itemsize + boxes.numel() * boxes.itemsize + rows * 28)
