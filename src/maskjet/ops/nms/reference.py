"""The definition of nms: the overlaps of all pairs in plain PyTorch, then one box after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Kept:
    """The boxes that NMS keeps, most confident first; B images, K = max_output rows each."""

    count: torch.Tensor
    """int32 [B]: boxes per image, at most K."""
    index: torch.Tensor
    """int32 [B, K]: their positions among the image's boxes, ascending; rows at and past `count` are undefined."""


def nms(boxes: torch.Tensor, count: torch.Tensor, groups: torch.Tensor, *, threshold: float, max_output: int) -> Kept:
    """Choose which of boxes [B, N, 4] stay; see `ops.nms`."""
    index = torch.zeros((len(boxes), max_output), dtype=torch.int32, device=boxes.device)
    kept = torch.zeros(len(boxes), dtype=torch.int32, device=boxes.device)
    for image, found in enumerate(count.clamp(0, boxes.shape[1]).tolist()):
        ours, group = boxes[image, :found], groups[image, :found]
        suppresses = ((_iou(ours) > threshold) & (group[:, None] == group)).cpu()
        is_removed = torch.zeros(found, dtype=torch.bool, device="cpu")
        stay: list[int] = []
        for number in range(found):
            if not is_removed[number] and len(stay) < max_output:
                stay.append(number)
                is_removed |= suppresses[number]
        kept[image] = len(stay)
        index[image, : len(stay)] = torch.tensor(stay, dtype=torch.int32, device="cpu")
    return Kept(kept, index)


def _iou(boxes: torch.Tensor) -> torch.Tensor:
    """Intersection over union of all pairs, [n, n]; no product is fused with a sum."""
    low = torch.maximum(boxes[:, None, :2], boxes[:, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[:, 2:])
    shared = (high - low).clamp(min=0).prod(dim=2)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    return shared / (area[:, None] + area - shared)
