"""The definition of paste_masks, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from maskjet.ops.selection import MaskQueries

LARGEST = 1e30
"""Replaces an infinite logit, since infinity times a share of 0 would be NaN."""
_FLOATS_AT_ONCE = 2**26  # upsampled values at once: 256 MB


def paste_masks(
    mask_logits: torch.Tensor, queries: MaskQueries, image_sizes: list[tuple[int, int]]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Upsample and threshold masks of [B, Q, h, w]; see `ops.paste_masks`."""
    pasted = []
    for image, (rows, (height, width)) in enumerate(zip(queries.rows(), image_sizes, strict=True)):
        distinct, place = torch.unique(rows, return_inverse=True)
        masks = torch.empty((len(distinct), height, width), dtype=torch.uint8, device=mask_logits.device)
        step = max(_FLOATS_AT_ONCE // (height * width), 1)
        for start in range(0, len(distinct), step):
            chosen = mask_logits[image, distinct[start : start + step]].float()
            values = upsample(chosen, height, width)
            masks[start : start + step] = values > 0
        masks = masks[place]
        pasted.append((masks, masks.flatten(1).any(dim=1)))
    return pasted


def upsample(masks: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Upsample mask logits [n, h, w] to values [n, height, width]; positive is inside."""
    return F.interpolate(finite(masks)[:, None], size=(height, width), mode="bilinear", align_corners=False)[:, 0]


def finite(masks: torch.Tensor) -> torch.Tensor:
    """Mask logits clamped to ±`LARGEST`; NaN counts as minus infinity."""
    return masks.clamp(-LARGEST, LARGEST).nan_to_num(nan=-LARGEST)
