"""mask_logits on an NVIDIA GPU: one launch, a tile of the masks per program."""

from __future__ import annotations

import torch
import triton

from maskjet.ops.gpu import Launchers, fitting_stages
from maskjet.ops.mask_logits.kernels import mask_logits_kernel

_LAUNCHERS = Launchers(mask_logits_kernel)
_ROWS, _COLUMNS = 128, 128
_STEPS = (64, 32, 16)


def mask_logits(queries: torch.Tensor, pixels: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write the mask logits; see the reference."""
    if not out.numel():
        return
    (batch, count, stride), (_, height, width, channels) = queries.shape, pixels.shape
    step = next(side for side in _STEPS if channels % side == 0)
    stages = fitting_stages(3, 2 * (_ROWS + _COLUMNS) * step, queries.device)
    _LAUNCHERS.of(queries.device, 8, stages)(
        (triton.cdiv(height * width, _COLUMNS), triton.cdiv(count, _ROWS), batch),
        (queries.device, queries.dtype),
        queries,
        pixels,
        out,
        QUERIES=count,
        PIXELS=height * width,
        CHANNELS=channels,
        STRIDE=stride,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        STEP=step,
    )
