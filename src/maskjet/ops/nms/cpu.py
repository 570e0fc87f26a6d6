"""nms on a CPU: compare each box with those kept so far, until enough are kept."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.jit import compiled
from maskjet.ops.nms.reference import Kept


def nms(boxes: torch.Tensor, count: torch.Tensor, groups: torch.Tensor, *, threshold: float, max_output: int) -> Kept:
    """Choose which of boxes [B, N, 4] stay; see `ops.nms`."""
    index = torch.zeros((len(boxes), max_output), dtype=torch.int32, device="cpu")
    kept = torch.zeros(len(boxes), dtype=torch.int32, device="cpu")
    counts, rows = kept.numpy(), index.numpy()
    for image, found in enumerate(count.clamp(0, boxes.shape[1]).tolist()):
        ours = np.ascontiguousarray(boxes[image, :found].numpy())
        group = np.ascontiguousarray(groups[image, :found].numpy())
        counts[image] = _choose(ours, group, np.float32(threshold), rows[image])
    return Kept(kept, index)


@compiled("int64(Array(float32, 2, 'C', True), Array(int32, 1, 'C', True), float32, int32[::1])")
def _choose(
    boxes: NDArray[np.float32], groups: NDArray[np.int32], threshold: np.float32, index: NDArray[np.int32]
) -> int:
    """Write the positions of the boxes that stay; returns how many."""
    kept = 0
    for number in range(len(boxes)):
        if kept == len(index):
            break
        left, top, right, bottom = boxes[number]
        area = (right - left) * (bottom - top)
        stays = True
        for row in range(kept):
            other = index[row]
            if groups[other] != groups[number]:
                continue
            width = min(right, boxes[other, 2]) - max(left, boxes[other, 0])
            height = min(bottom, boxes[other, 3]) - max(top, boxes[other, 1])
            if width > 0 and height > 0:
                shared = width * height
                whole = (boxes[other, 2] - boxes[other, 0]) * (boxes[other, 3] - boxes[other, 1])
                if shared / (whole + area - shared) > threshold:
                    stays = False
                    break
        if stays:
            index[kept] = number
            kept += 1
    return kept
