"""Drop detections that show an instance once more."""

from __future__ import annotations

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from maskjet import ops
from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.jit import Bools, compiled
from maskjet.masks.strips import STRIPS, Strips, count_common, cut_masks


def drop_duplicates(found: Detections, nms: float, config: EngineConfig) -> Detections:
    """Non-maximum suppression: drop each detection that overlaps a more confident one that stays.

    By boxes it keeps those that torchvision's `batched_nms` keeps, or `nms` across classes. By masks the intersection
    over union is that of their pixels. Of equal confidences the first one stays.

    Args:
        found: Detections, most confident first.
        nms: The largest intersection over union that two detections may have, 0..1.
        config: Whether masks or boxes are compared, and across classes or not.

    Returns:
        Those that stay, in order.

    Raises:
        InputError: The masks need more memory than `limits.masks_bytes`.
    """
    if nms >= 1 or len(found) < 2:
        return found
    groups = np.zeros_like(found.class_id) if config.nms_across_classes else np.ascontiguousarray(found.class_id)
    if found.rle is None or config.nms_by == "box":
        boxes = torch.from_numpy(np.ascontiguousarray(found.xyxy))[None]
        kept = ops.nms(boxes, groups=torch.from_numpy(groups)[None], iou_threshold=nms)
        return found[kept.index[0, : kept.count[0]].numpy()]
    return found[_choose(cut_masks(found.rle, found.image_size), groups, nms)]


@compiled(numba.boolean[::1](STRIPS, numba.int32[::1], numba.float64))
def _choose(masks: Strips, groups: NDArray[np.int32], nms: float) -> Bools:
    """Whether each mask stays, bool [n]."""
    stays = np.ones(len(groups), np.bool_)
    for j in range(1, len(groups)):
        own = masks.strips[masks.firsts[j] : masks.firsts[j + 1]]
        for i in range(j):
            if not stays[i] or groups[i] != groups[j]:
                continue
            other = masks.strips[masks.firsts[i] : masks.firsts[i + 1]]
            shared = count_common(own, masks.boxes[j], 0, 0, other, masks.boxes[i])
            if shared > 0 and shared / (masks.areas[i] + masks.areas[j] - shared) > nms:
                stays[j] = False
                break
    return stays
