"""The definition of roi_align: torchvision's kernel, level by level."""

from __future__ import annotations

import torch

from maskjet.host.extras import require

CANONICAL_SIDE, CANONICAL_LEVEL = 224.0, 4
"""A box of this side, in input pixels, is pooled at a scale of 2 ** -level."""
EPSILON = 1e-6
"""Added to a box's level before it is rounded down, as in torchvision."""


def roi_align(features: list[torch.Tensor], boxes: torch.Tensor, *, finest: int, size: int) -> torch.Tensor:
    """Pool boxes [B, N, 4]; level l has a scale of 2 ** -(finest + l); see `ops.roi_align`."""
    pool = require("torchvision.ops", extra="torchvision", purpose="ops.roi_align without Triton").roi_align
    batch, count = boxes.shape[:2]
    rows = boxes.reshape(-1, 4)
    image = torch.arange(batch, dtype=rows.dtype, device=rows.device).repeat_interleave(count)
    levels = _find_levels(rows, finest, len(features))
    pooled = features[0].new_zeros(batch * count, features[0].shape[1], size, size)
    pooled = pooled.contiguous(memory_format=torch.channels_last)
    for level, feature in enumerate(features):
        scale = 2.0 ** -(finest + level)
        sides = rows[:, 2:] * scale - rows[:, :2] * scale
        chosen = (levels == level) & sides.isfinite().all(dim=1)  # for others torchvision reads arbitrary memory
        numbered = torch.cat((image[chosen, None], rows[chosen]), dim=1)
        bins = pool(feature.float(), numbered, size, scale, sampling_ratio=2)
        pooled[chosen] = bins.to(pooled.dtype)
    return pooled


def _find_levels(boxes: torch.Tensor, finest: int, levels: int) -> torch.Tensor:
    """The level that each box is pooled from, int64 [n]; 0 is the finest."""
    side = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1).sqrt()
    level = (CANONICAL_LEVEL + (side / CANONICAL_SIDE).log2() + EPSILON).floor() - finest
    return level.nan_to_num(nan=0).clamp(0, levels - 1).long()
