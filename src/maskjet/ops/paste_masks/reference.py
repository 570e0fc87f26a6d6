"""The definition of paste_masks, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from maskjet.ops.canvas import Canvas
from maskjet.ops.selection import MaskQueries, SizeTable

LARGEST = 1e30
"""Replaces an infinite logit, since infinity times a share of 0 would be NaN."""
_FLOATS_AT_ONCE = 2**26  # upsampled values per step: 256 MB


def paste_masks(
    mask_logits: torch.Tensor, queries: MaskQueries, sizes: SizeTable
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Upsample and threshold masks of [B, Q, h, w]; see `ops.paste_masks`."""
    pasted = []
    for image, (rows, size, canvas) in enumerate(zip(queries.rows(), sizes.hw, sizes.canvases, strict=True)):
        distinct, place = torch.unique(rows, return_inverse=True)
        masks = torch.empty((len(distinct), *size), dtype=torch.uint8, device=mask_logits.device)
        step = max(_FLOATS_AT_ONCE // (size[0] * size[1]), 1)
        for start in range(0, len(distinct), step):
            chosen = mask_logits[image, distinct[start : start + step]].float()
            masks[start : start + step] = show(chosen, size, canvas) > 0
        masks = masks[place]
        pasted.append((masks, masks.flatten(1).any(dim=1)))
    return pasted


def show(masks: torch.Tensor, size_hw: tuple[int, int], canvas: Canvas) -> torch.Tensor:
    """Resample mask logits [n, h, w], which cover a canvas, to the image within it: [n, height, width].

    Equal to upsampling them to the canvas and cropping where that has whole pixels; positive is inside.
    """
    if canvas == Canvas.of(size_hw):
        return upsample(masks, *size_hw)
    left, beyond_left, top, beyond_top, width, height = canvas.split
    values = _resample(finite(masks), 2, size_hw[1], width, left, beyond_left)
    return _resample(values, 1, size_hw[0], height, top, beyond_top)


def _resample(values: torch.Tensor, axis: int, target: int, side: float, whole: int, fraction: float) -> torch.Tensor:
    """Resample an axis that covers `side` pixels at `target` pixels, offset by `whole` + `fraction`."""
    source = values.shape[axis]
    pixel = torch.arange(target, dtype=torch.int64, device=values.device) - whole
    centre = pixel.to(values.dtype) - fraction + 0.5
    scale = values.new_tensor(source) / values.new_tensor(side)
    position = (scale * centre - 0.5).clamp(0, source - 1)
    first = position.long()
    share = (position - first).view([-1 if dimension == axis else 1 for dimension in range(3)])
    before, after = (values.index_select(axis, index) for index in (first, (first + 1).clamp(max=source - 1)))
    return before * (1 - share) + after * share


def upsample(masks: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Upsample mask logits [n, h, w] to values [n, height, width]; positive is inside."""
    return F.interpolate(finite(masks)[:, None], size=(height, width), mode="bilinear", align_corners=False)[:, 0]


def finite(masks: torch.Tensor) -> torch.Tensor:
    """Mask logits clamped to ±`LARGEST`; NaN counts as minus infinity."""
    return masks.clamp(-LARGEST, LARGEST).nan_to_num(nan=-LARGEST)
