"""resize_pixels on an NVIDIA GPU: one launch, a tile of pixels per program.

Sizes are run-time arguments: other sizes compile nothing.
"""

from __future__ import annotations

import torch
import triton

from maskjet.ops.gpu import Launchers
from maskjet.ops.resize_pixels.kernels import resize_pixels_kernel

_LAUNCHERS = Launchers(resize_pixels_kernel)
_ROWS, _COLUMNS, _WARPS = 4, 4, 4


def resize_pixels(image: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write the resized image; see the reference."""
    if not out.numel():
        return
    (batch, height, width, channels), (source_height, source_width) = out.shape, image.shape[1:3]
    _LAUNCHERS.of(image.device, _WARPS, 1)(
        (triton.cdiv(width, _COLUMNS), triton.cdiv(height, _ROWS), batch),
        (image.device, image.dtype),
        image,
        out,
        source_height,
        source_width,
        height,
        width,
        source_height / height,  # rounded to float32 when passed, as in PyTorch
        source_width / width,
        CHANNELS=channels,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
    )
