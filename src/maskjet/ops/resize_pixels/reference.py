"""The definition of resize_pixels, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def resize_pixels(image: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write the resized image; see `ops.resize_pixels`."""
    if image.numel():
        pixels = image.float().permute(0, 3, 1, 2)
        pixels = F.interpolate(pixels, size=out.shape[1:3], mode="bilinear", align_corners=False)
        out.copy_(pixels.permute(0, 2, 3, 1))
