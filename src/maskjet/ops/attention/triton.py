"""attention on an NVIDIA GPU: one launch, a block of queries of one head per program, with an online softmax."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from maskjet.ops.attention.kernels import attention_kernel
from maskjet.ops.gpu import MULTIPROCESSORS, Launchers, fitting_stages

_FEWEST = 16  # keys; tensor cores need at least this many
_LONG = 1500  # tokens of a long sequence
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
    """Pipeline stages (`num_stages`)."""


def choose_blocks(batch: int, length: int, heads: int, side: int) -> Blocks:
    """Choose the launch shape for sequences [batch, length, heads × side], as timed on an H200.

    If at most one program runs per multiprocessor, or three for long sequences, it waits for every block of keys, and
    large blocks are faster.
    """
    blocks = Blocks(64, 64, 4, 3)
    programs = triton.cdiv(length, blocks.queries) * heads * batch
    if side > 64 or programs > (3 if length >= _LONG else 1) * MULTIPROCESSORS:
        return blocks
    return blocks._replace(keys=128, stages=3 if programs <= 2 * MULTIPROCESSORS else 2)  # two stages: 3 programs fit


def attention(projections: torch.Tensor, out: torch.Tensor) -> None:
    """Write the attention of projections [B, L, 3, H, D] into out [B, L, H × D]; see the reference."""
    batch, length, _, heads, side = projections.shape
    if not projections.numel():
        return
    blocks = choose_blocks(batch, length, heads, side)
    stages = fitting_stages(blocks.stages, 4 * blocks.keys * side, projections.device)
    rest = max(triton.next_power_of_2(length % blocks.keys), _FEWEST)
    _LAUNCHERS.of(projections.device, blocks.warps, stages, batch * length)(
        (triton.cdiv(length, blocks.queries), heads, batch),
        (projections.device, projections.dtype),
        projections,
        out,
        LENGTH=length,
        HEADS=heads,
        SIDE=side,
        QUERIES=blocks.queries,
        KEYS=blocks.keys,
        REST=rest,
    )
