"""roi_align on a CPU: torchvision's kernel, level by level. A two-stage detector brings torchvision with it."""

from __future__ import annotations

import importlib.util

import torch

from maskjet.ops.record import needs_cpu
from maskjet.ops.roi_align.reference import find_levels


def refuse(sample: torch.Tensor) -> str | None:
    """Why these features can't be served, or None."""
    if importlib.util.find_spec("torchvision") is None:
        return "torchvision is not installed"
    return needs_cpu(sample)


def roi_align(features: list[torch.Tensor], boxes: torch.Tensor, *, finest: int, size: int) -> torch.Tensor:
    """Pool boxes [B, N, 4]; level l has a scale of 2 ** -(finest + l); see `ops.roi_align`."""
    from torchvision.ops import roi_align as pool

    batch, count = boxes.shape[:2]
    rows = boxes.reshape(-1, 4)
    image = torch.arange(batch, dtype=rows.dtype, device="cpu").repeat_interleave(count)
    levels = find_levels(rows, finest, len(features))
    pooled = features[0].new_zeros((batch * count, features[0].shape[1], size, size))
    pooled = pooled.contiguous(memory_format=torch.channels_last)
    for level, feature in enumerate(features):
        scale = 2.0 ** -(finest + level)
        sides = rows[:, 2:] * scale - rows[:, :2] * scale
        chosen = (levels == level) & sides.isfinite().all(dim=1)  # for others torchvision reads arbitrary memory
        numbered = torch.cat((image[chosen, None], rows[chosen]), dim=1)
        bins = pool(feature.float(), numbered, size, scale, sampling_ratio=2)
        pooled[chosen] = bins.to(pooled.dtype)
    return pooled
