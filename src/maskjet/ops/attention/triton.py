"""attention on an NVIDIA GPU: one launch, a block of queries of one head per program, with the softmax as it goes."""

from __future__ import annotations

import torch
import triton

from maskjet.ops.attention.kernels import attention_kernel
from maskjet.ops.gpu import Launchers, has_dependent_launches, on_device_of

_QUERIES, _KEYS = 64, 64
_LAUNCHERS = Launchers(attention_kernel)


def attention(projections: torch.Tensor, out: torch.Tensor) -> None:
    """Write the attention of projections [B, L, 3, H, D] into out [B, L, H × D]; see `ops.attention`.

    Never waits, and can be captured in a CUDA graph.
    """
    batch, length, _, heads, side = projections.shape
    if not projections.numel():
        return
    waits = has_dependent_launches(projections.device)
    with on_device_of(projections):
        _LAUNCHERS.of(4, 3, waits=waits)(
            (triton.cdiv(length, _QUERIES), heads, batch),
            (projections.device, projections.dtype),
            projections,
            out,
            LENGTH=length,
            HEADS=heads,
            SIDE=side,
            WAITS=waits,
            QUERIES=_QUERIES,
            KEYS=_KEYS,
        )
