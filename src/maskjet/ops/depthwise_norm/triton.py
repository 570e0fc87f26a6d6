"""depthwise_norm on an NVIDIA GPU: one launch; a program walks down some columns, a pair of pixels per warp."""

from __future__ import annotations

import torch
import triton

from maskjet.ops.depthwise_norm.kernels import depthwise_norm_kernel
from maskjet.ops.gpu import Launchers

# 168 registers hold the weights and sums of 256 channels, and let 12 warps share a multiprocessor.
_LAUNCHERS = Launchers(depthwise_norm_kernel, maxnreg=168)
_PAIRS = 2
_CHANNELS_OF_WARP = 256
_ROWS_OF_FEW, _ROWS_OF_MANY = 3, 39  # most rows per program
_MANY_PIXELS = 2**15  # from this size, many rows per program still fill the GPU


def depthwise_norm(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, out: torch.Tensor
) -> None:
    """Write the normalised convolution; see the reference."""
    batch, height, width, channels = image.shape
    if not image.numel():
        return
    is_many = batch * height * width >= _MANY_PIXELS
    tiles = triton.cdiv(height, _ROWS_OF_MANY if is_many else _ROWS_OF_FEW)
    _LAUNCHERS.of(image.device, _PAIRS * triton.cdiv(channels, _CHANNELS_OF_WARP), 1)(
        (triton.cdiv(width, 2 * _PAIRS), tiles, batch),
        (image.device, image.dtype),
        image,
        weight,
        bias,
        out,
        eps,
        HEIGHT=height,
        WIDTH=width,
        CHANNELS=channels,
        ROWS=triton.cdiv(height, tiles),
        PAIRS=_PAIRS,
    )
