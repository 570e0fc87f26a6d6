"""deformable_attention on an NVIDIA GPU: one launch; a query per program keeps all multiprocessors busy."""

from __future__ import annotations

import torch
import triton

from maskjet.ops.deformable_attention.kernels import deformable_attention_kernel
from maskjet.ops.gpu import Launchers

_LAUNCHERS = Launchers(deformable_attention_kernel)
_ROWS = 1


def deformable_attention(
    projections: torch.Tensor, boxes: torch.Tensor, values: torch.Tensor, *, out: torch.Tensor
) -> None:
    """Write the context; see the reference."""
    batch, queries, points, _, heads = projections.shape
    if not out.numel():
        return
    _, height, width, channels = values.shape
    _LAUNCHERS.of(values.device, 2, 1)(
        (triton.cdiv(batch * queries, _ROWS), 1, 1),
        (values.device, values.dtype),
        projections,
        boxes,
        values,
        out,
        batch * queries,
        QUERIES=queries,
        POINTS=points,
        HEADS=heads,
        SIDE=channels // heads,
        HEIGHT=height,
        WIDTH=width,
        VALUES_STRIDE=values.stride(2),
        ROWS=_ROWS,
    )
