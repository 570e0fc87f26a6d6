"""The definition of roi_align in plain PyTorch, level by level."""

from __future__ import annotations

import torch

CANONICAL_SIDE, CANONICAL_LEVEL = 224.0, 4
"""A box of this side is pooled at a scale of 2 ** -4."""
EPSILON = 1e-6
"""Added to a level before it is rounded down."""


def roi_align(features: list[torch.Tensor], boxes: torch.Tensor, *, finest: int, size: int) -> torch.Tensor:
    """Pool boxes [B, N, 4]; level l has a scale of 2 ** -(finest + l); see `ops.roi_align`."""
    batch, count = boxes.shape[:2]
    rows = boxes.reshape(-1, 4)
    image = torch.arange(batch, dtype=torch.int64, device=boxes.device).repeat_interleave(count)
    levels = find_levels(rows, finest, len(features))
    shape = (batch * count, features[0].shape[1], size, size)
    pooled = features[0].new_empty(shape).contiguous(memory_format=torch.channels_last)
    for level, feature in enumerate(features):
        chosen = levels == level
        pooled[chosen] = _pool(feature, image[chosen], rows[chosen] * 2.0 ** -(finest + level), size)
    return pooled


def find_levels(boxes: torch.Tensor, finest: int, levels: int) -> torch.Tensor:
    """The level that each box is pooled from, int64 [n]; 0 is the finest."""
    side = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1).sqrt()
    level = (CANONICAL_LEVEL + (side / CANONICAL_SIDE).log2() + EPSILON).floor() - finest
    return level.nan_to_num(nan=0).clamp(0, levels - 1).long()


def _pool(feature: torch.Tensor, image: torch.Tensor, boxes: torch.Tensor, size: int) -> torch.Tensor:
    """Bins [n, C, size, size] of boxes in feature coordinates."""
    sides = boxes[:, 2:] - boxes[:, :2]
    boxes = boxes.where(sides.isfinite().all(dim=1, keepdim=True), torch.nan)  # NaN is near no pixel
    sides = sides.clamp(min=1) / size
    bins = torch.arange(size, dtype=torch.int64, device=boxes.device)
    total = torch.zeros((len(boxes), size, size, feature.shape[1]), dtype=torch.float32, device=boxes.device)
    for down in (0.25, 0.75):
        y = boxes[:, 1, None] + bins * sides[:, 1, None] + down * sides[:, 1, None]
        for across in (0.25, 0.75):
            x = boxes[:, 0, None] + bins * sides[:, 0, None] + across * sides[:, 0, None]
            total += _sample(feature, image, y, x)
    return (total / 4).permute(0, 3, 1, 2).to(feature.dtype)


def _sample(feature: torch.Tensor, image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Bilinear samples [n, size, size, C] at rows y and columns x, [n, size] each; zero more than a pixel outside."""
    (top, bottom, down, is_row), (left, right, across, is_column) = (
        _taps(at, extent) for at, extent in zip((y, x), feature.shape[2:], strict=True)
    )
    pixels = feature.permute(0, 2, 3, 1).float()
    rows, columns, which = (slice(None), slice(None), None), (slice(None), None), image[:, None, None]
    value = torch.zeros((), dtype=torch.float32, device=feature.device)
    for number, (row, column) in enumerate(((top, left), (top, right), (bottom, left), (bottom, right))):
        share = (down if number > 1 else 1 - down)[rows] * (across if number % 2 else 1 - across)[columns]
        value = value + share[..., None] * pixels[which, row[rows], column[columns]]
    return torch.where((is_row[rows] & is_column[columns])[..., None], value, 0)


def _taps(at: torch.Tensor, extent: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The pixels before and after each position, the share of the second, and whether it is at most a pixel outside."""
    is_near = (at >= -1) & (at <= extent)
    inside = torch.where(is_near, at, 0).clamp(min=0)
    first = inside.long().clamp(max=extent - 1)
    inside = torch.where(first == extent - 1, first, inside)
    return first, (first + 1).clamp(max=extent - 1), inside - first, is_near
