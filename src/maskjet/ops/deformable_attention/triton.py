"""deformable_attention on an NVIDIA GPU: one launch; a query per program keeps all multiprocessors busy."""

from __future__ import annotations

import torch
import triton

from maskjet.ops.deformable_attention.kernels import deformable_attention_kernel
from maskjet.ops.gpu import Launchers, has_dependent_launches, on_device

_LAUNCHERS = Launchers(deformable_attention_kernel)
_ROWS = 1


def deformable_attention(
    projections: torch.Tensor, boxes: torch.Tensor, values: torch.Tensor, *, out: torch.Tensor
) -> None:
    """Write the context; see `ops.deformable_attention`."""
    batch, queries, points, _, heads = projections.shape
    if not out.numel():
        return
    _, height, width, channels = values.shape
    waits = has_dependent_launches(values.device)
    with on_device(values.device):
        _LAUNCHERS.of(2, 1, waits=waits)(
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
            WAITS=waits,
            ROWS=_ROWS,
        )
