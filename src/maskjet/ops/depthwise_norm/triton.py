"""depthwise_norm on an NVIDIA GPU: one launch; a program goes down some columns of an image."""

from __future__ import annotations

import torch
import triton

from maskjet.ops.depthwise_norm.kernels import depthwise_norm_kernel
from maskjet.ops.gpu import Launchers, has_dependent_launches, on_device_of

_LAUNCHERS = Launchers(depthwise_norm_kernel)
_COLUMNS = 8
_ROWS_OF_FEW, _ROWS_OF_MANY = 4, 24
_MANY_PIXELS = 2**15  # from here on there are enough programs with many rows each


def depthwise_norm(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float, out: torch.Tensor
) -> None:
    """Write the normalised convolution; see `ops.depthwise_norm`.

    Never waits, and can be captured in a CUDA graph.
    """
    batch, height, width, channels = image.shape
    if not image.numel():
        return
    rows = _ROWS_OF_MANY if batch * height * width >= _MANY_PIXELS else _ROWS_OF_FEW
    waits = has_dependent_launches(image.device)
    with on_device_of(image):
        _LAUNCHERS.of(4, 2, waits=waits)(
            (triton.cdiv(width, _COLUMNS), triton.cdiv(height, rows), batch),
            (image.device, image.dtype),
            image,
            weight,
            bias,
            out,
            eps,
            HEIGHT=height,
            WIDTH=width,
            CHANNELS=channels,
            WAITS=waits,
            ROWS=rows,
            COLUMNS=_COLUMNS,
        )
