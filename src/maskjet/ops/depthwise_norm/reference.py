"""The definition of depthwise_norm, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def depthwise_norm(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, out: torch.Tensor
) -> None:
    """Convolve each channel, 3 × 3 with zero padding, and normalise each pixel over its channels.

    The norm has no affine, which is folded into the layer behind it.

    Args:
        image: float16 or bfloat16 [B, H, W, C], contiguous; C is a power of two, at most 512.
        weight: float32 [9, C], contiguous: the kernel row by row.
        bias: float32 [C].
        eps: Added to the variance of a pixel.
        out: Of the image's type and shape, contiguous.
    """
    channels = image.shape[3]
    kernel = weight.T.reshape(channels, 1, 3, 3)
    if image.numel():
        pixels = F.conv2d(image.float().permute(0, 3, 1, 2), kernel, bias, padding=1, groups=channels)
        out.copy_(F.layer_norm(pixels.permute(0, 2, 3, 1), (channels,), eps=eps))
