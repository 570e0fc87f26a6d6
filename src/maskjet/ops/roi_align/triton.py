"""roi_align on an NVIDIA GPU: one launch, one program per box, row of bins and block of channels.

Features that are not channels-last, strided boxes, and tensors not aligned to 16 bytes are first copied.
"""

from __future__ import annotations

import torch

from maskjet.ops.gpu import Launcher, on_device
from maskjet.ops.roi_align.kernels import roi_align_kernel

_BLOCK = 128
_BYTES = 16  # widest load of a thread, which must be aligned to it

_launch = Launcher(roi_align_kernel, num_warps=4)


def roi_align(features: list[torch.Tensor], boxes: torch.Tensor, *, finest: int, size: int) -> torch.Tensor:
    """Pool boxes [B, N, 4]; level l has a scale of 2 ** -(finest + l); see `ops.roi_align`."""
    levels = [_aligned(feature.contiguous(memory_format=torch.channels_last)) for feature in features]
    padded = levels + levels[-1:] * (4 - len(levels))  # the kernel has four level arguments
    channels, rows = levels[0].shape[1], boxes.shape[0] * boxes.shape[1]
    shape = (rows, channels, size, size)
    pooled = torch.empty(shape, dtype=levels[0].dtype, device=boxes.device, memory_format=torch.channels_last)
    if rows:
        with on_device(boxes.device):
            _launch(
                (rows, size, -(-channels // _BLOCK)),
                (boxes.device, levels[0].dtype),
                *padded,
                _aligned(boxes.contiguous()),
                pooled,
                *(side for level in padded for side in level.shape[2:]),
                boxes.shape[1],
                finest,
                len(levels),
                SIZE=size,
                BINS=max(1 << (size - 1).bit_length(), 2),
                CHANNELS=channels,
                BLOCK=_BLOCK,
            )
    return pooled


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or an aligned copy: without vectorised loads the kernel takes twice as long."""
    return tensor.clone() if tensor.data_ptr() % _BYTES else tensor
