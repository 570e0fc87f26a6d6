"""The definition of resize_pixels, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def resize_pixels(image: torch.Tensor, *, out: torch.Tensor) -> None:
    """Resize feature maps bilinearly, in float32: half-pixel centres and no antialias, as PyTorch's `interpolate`.

    Args:
        image: float16 or bfloat16 [B, H, W, C], contiguous, of at least one pixel; C is a power of two, at most 512.
        out: Of the image's type, [B, h, w, C], contiguous.
    """
    if image.numel():
        pixels = image.float().permute(0, 3, 1, 2)
        pixels = F.interpolate(pixels, size=out.shape[1:3], mode="bilinear", align_corners=False)
        out.copy_(pixels.permute(0, 2, 3, 1))
