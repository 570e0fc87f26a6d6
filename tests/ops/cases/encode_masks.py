"""Inputs with boxes on which every implementation of encode_masks must agree; `paste_masks` has the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from maskjet.masks import coco_rle
from maskjet.ops.encode_masks.reference import values_in_box
from tests.ops.cases import paste_masks

_SIDE = 28  # logits along a side of a mask, without its border


def _case(
    *boxes: tuple[int, int, int, int],
    size: tuple[int, int] = (70, 101),
    edit: Callable[[torch.Tensor], object] = torch.Tensor.size,
    dtype: torch.dtype = torch.float32,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        masks = paste_masks.blobs(1, 3, (_SIDE, _SIDE), torch.Generator().manual_seed(sum(size) + len(boxes)))
        edit(masks)
        rows = [torch.arange(len(boxes), dtype=torch.int32, device=device) % 3]
        found = [torch.tensor(boxes, dtype=torch.int32, device=device).view(-1, 4)]
        return {
            "mask_logits": F.pad(masks, (1, 1, 1, 1), value=-0.5).to(device, dtype),
            "query": rows,
            "image_sizes": [size],
            "boxes": found,
        }

    return build


def _batch(device: torch.device) -> dict[str, Any]:
    masks = paste_masks.blobs(2, 4, (_SIDE, 14), torch.Generator().manual_seed(9)).to(device)
    boxes = [[(3, 4, 50, 60), (-10, 70, 80, 90), (40, -20, 30, 77)], [(0, 0, 131, 97)]]
    return {
        "mask_logits": F.pad(masks, (1, 1, 1, 1), value=-0.5),
        "query": [torch.tensor(row, dtype=torch.int64, device=device) for row in ([2, 0, 2], [3])],
        "image_sizes": [(120, 88), (97, 131)],
        "boxes": [torch.tensor(rows, dtype=torch.int32, device=device) for rows in boxes],
    }


def _fill(masks: torch.Tensor) -> None:
    masks.fill_(0.5)


def _some_nan(masks: torch.Tensor) -> None:
    masks[:, :, 10:13, 4:20:3] = torch.nan


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    **paste_masks.CASES,
    "in boxes": _case((5, 6, 88, 60), (60, 4, 25, 62), (0, 0, 30, 30)),
    "beyond the image": _case((-20, -15, 90, 65), (70, 42, 50, 60), (-5, 62, 40, 35)),
    "all of the image and more": _case((-10, -10, 140, 130), (0, 0, 101, 70), (-900, -700, 2000, 1500)),
    "outside of the image": _case((300, 20, 40, 40), (20, -80, 50, 60), (-70, 10, 60, 20)),
    "one pixel each": _case((7, 9, 1, 1), (100, 69, 1, 1), (0, 0, 1, 1), edit=_fill),
    "smaller than the masks": _case((12, 9, 5, 6), (90, 60, 11, 10), (60, 0, 3, 40), edit=_fill),
    "at the bottom": _case((30, 65, 20, 5), (50, 40, 4, 30), (95, 40, 6, 30), edit=_fill),
    "beyond the bottom": _case((-3, 50, 5, 60), (60, -20, 3, 150), (98, -3, 20, 76), edit=_fill),
    "a mask in two boxes": _case((9, 0, 70, 70), (9, 0, 70, 70), (9, 9, 3, 3), (40, 20, 50, 50)),
    "a wide image": _case((900, 3, 180, 19), (-5, -5, 1110, 30), (1040, 2, 15, 20), size=(22, 1050)),
    "boxes, not numbers": _case((5, 6, 88, 60), (60, 4, 25, 62), (-9, 0, 30, 30), edit=_some_nan),
    "boxes, float16": _case((5, 6, 88, 60), (-15, 4, 80, 60), (7, 7, 9, 9), dtype=torch.float16),
    "boxes without pixels": _case((5, 6, 0, 60), (60, 4, 25, 0), (-9, 0, -30, 30), edit=_fill),
    "batch with boxes": _batch,
}


def differing_share(inputs: dict[str, Any], image: int, is_different: torch.Tensor) -> float:
    """The same as `paste_masks.paste_masks.differing_share`, for masks with or without boxes."""
    if "boxes" not in inputs:
        return paste_masks.differing_share(inputs, image, is_different)
    masks, size = inputs["mask_logits"][image].double(), inputs["image_sizes"][image]
    placed = list(zip(inputs["query"][image].tolist(), inputs["boxes"][image].tolist(), strict=True))
    values, magnitudes = (
        torch.stack([values_in_box(logits[row], box, size) for row, box in placed])
        for logits in (masks, paste_masks.largest_around(masks))
    )
    return paste_masks.share_of(values, magnitudes, is_different)


def tolerance_used(inputs: dict[str, Any], expected: list[list[bytes]], actual: list[list[bytes]]) -> float:
    """0 if all strings are equal, else the largest value of a differing pixel, in tolerances of paste_masks."""
    used = 0.0
    for image, (theirs, ours) in enumerate(zip(expected, actual, strict=True)):
        if theirs == ours:
            continue
        if len(theirs) != len(ours):
            return float("inf")
        size = inputs["image_sizes"][image]
        masks = (
            np.stack([coco_rle.decode({"size": size, "counts": text}) for text in strings])
            for strings in (theirs, ours)
        )
        used = max(used, differing_share(inputs, image, torch.from_numpy(np.not_equal(*masks))))
    return used


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of each distinct mask's logits; the strings are small in comparison."""
    logits = inputs["mask_logits"]
    return int(sum(len(rows.unique()) for rows in inputs["query"]) * logits[0, 0].numel() * logits.itemsize)
