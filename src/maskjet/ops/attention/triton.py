"""attention on an NVIDIA GPU: one launch, a block of queries of one head per program, with the softmax as it goes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from maskjet.ops.attention.kernels import attention_kernel
from maskjet.ops.gpu import MULTIPROCESSORS, Launchers, fitting_stages, has_dependent_launches, on_device_of

_FEWEST = 16  # keys of a tensor core's product
_LONG = 1500  # tokens
_LAUNCHERS = Launchers(attention_kernel)


class Blocks(NamedTuple):
    """The shape of a launch."""

    queries: int
    """Queries per program."""
    keys: int
    """Keys per step."""
    warps: int
    """Warps per program."""
    stages: int
    """Steps whose keys and values are under way at once."""


def choose_blocks(batch: int, length: int, heads: int, side: int) -> Blocks:
    """The shape for sequences [batch, length, heads × side], by what was timed on an H200.

    Few programs, which share a multiprocessor with none or, in long sequences, with two others, wait for every block of
    keys: large blocks.
    """
    blocks = Blocks(64, 64, 4, 3)
    programs = triton.cdiv(length, blocks.queries) * heads * batch
    if side > 64 or programs > (3 if length >= _LONG else 1) * MULTIPROCESSORS:
        return blocks
    return blocks._replace(keys=128, stages=3 if programs <= 2 * MULTIPROCESSORS else 2)  # three fit with two stages


def attention(projections: torch.Tensor, out: torch.Tensor) -> None:
    """Write the attention of projections [B, L, 3, H, D] into out [B, L, H × D]; see `ops.attention`."""
    batch, length, _, heads, side = projections.shape
    if not projections.numel():
        return
    blocks = choose_blocks(batch, length, heads, side)
    stages = fitting_stages(blocks.stages, 4 * blocks.keys * side, projections.device)
    rest = max(triton.next_power_of_2(length % blocks.keys), _FEWEST)
    waits = has_dependent_launches(projections.device)
    with on_device_of(projections):
        _LAUNCHERS.of(blocks.warps, stages, waits=waits)(
            (triton.cdiv(length, blocks.queries), heads, batch),
            (projections.device, projections.dtype),
            projections,
            out,
            LENGTH=length,
            HEADS=heads,
            SIDE=side,
            WAITS=waits,
            QUERIES=blocks.queries,
            KEYS=blocks.keys,
            REST=rest,
        )
