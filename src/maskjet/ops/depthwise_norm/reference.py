"""The definition of depthwise_norm, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def depthwise_norm(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, out: torch.Tensor
) -> None:
    """Write the normalised convolution; see `ops.depthwise_norm`."""
    channels = image.shape[3]
    kernel = weight.T.reshape(channels, 1, 3, 3)
    if image.numel():
        pixels = F.conv2d(image.float().permute(0, 3, 1, 2), kernel, bias, padding=1, groups=channels)
        out.copy_(F.layer_norm(pixels.permute(0, 2, 3, 1), (channels,), eps=eps))
