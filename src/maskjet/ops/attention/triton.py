"""attention on an NVIDIA GPU: one launch, a block of queries of one head per program, with the softmax as it goes."""

from __future__ import annotations

import torch
import triton

from maskjet.ops.attention.kernels import attention_kernel
from maskjet.ops.gpu import Launchers, fitting_stages, has_dependent_launches, on_device_of

_QUERIES = 64
_MULTIPROCESSORS = 132  # of an H100 or H200
_FEWEST = 16  # keys of a tensor core's product
_LAUNCHERS = Launchers(attention_kernel)


def attention(projections: torch.Tensor, out: torch.Tensor) -> None:
    """Write the attention of projections [B, L, 3, H, D] into out [B, L, H × D]; see `ops.attention`.

    Never waits, and can be captured in a CUDA graph.
    """
    batch, length, _, heads, side = projections.shape
    if not projections.numel():
        return
    programs = triton.cdiv(length, _QUERIES) * heads * batch
    # Few programs have a multiprocessor each, and wait for every block: large blocks. Measured on an H200.
    keys, stages = (128, 4) if programs <= _MULTIPROCESSORS and side <= 64 else (64, 3)
    stages = fitting_stages(stages, 4 * keys * side, projections.device)
    rest = max(triton.next_power_of_2(length % keys), _FEWEST)
    waits = has_dependent_launches(projections.device)
    with on_device_of(projections):
        _LAUNCHERS.of(4, stages, waits=waits)(
            (triton.cdiv(length, _QUERIES), heads, batch),
            (projections.device, projections.dtype),
            projections,
            out,
            LENGTH=length,
            HEADS=heads,
            SIDE=side,
            WAITS=waits,
            QUERIES=_QUERIES,
            KEYS=keys,
            REST=rest,
        )
