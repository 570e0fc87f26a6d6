"""embed_patches on an NVIDIA GPU: one launch, a tile of the tokens per program."""

from __future__ import annotations

import math

import torch
import triton

from maskjet.ops.embed_patches.kernels import embed_patches_kernel
from maskjet.ops.gpu import Launchers
from maskjet.ops.linear.tiles import choose_tile, fit

_LAUNCHERS = Launchers(embed_patches_kernel)
_STEP = 64


def embed_patches(
    images: torch.Tensor,
    weight: torch.Tensor,
    positions: torch.Tensor,
    *,
    windows: int,
    out: torch.Tensor,
    out_sums: torch.Tensor,
) -> None:
    """Write the tokens and their sums; see the reference."""
    if not images.numel():
        return
    (rows, outputs), (_, channels, height, width) = out.shape, images.shape
    # Tiles of a layer of this width, so that there are as many partial row sums as other layers write.
    tile = choose_tile(rows, outputs, outputs)._replace(columns=outputs // out_sums.shape[2], step=_STEP)
    tile = fit(tile, images.device)
    _LAUNCHERS.of(images.device, tile.warps, tile.stages)(
        (triton.cdiv(rows, tile.rows) * (outputs // tile.columns), 1, 1),
        (images.device, images.dtype),
        images,
        weight,
        positions,
        out,
        out_sums,
        rows,
        HEIGHT=height,
        WIDTH=width,
        SIDE=math.isqrt(weight.shape[1] // channels),
        WINDOWS=windows,
        OUTPUTS=outputs,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        STEP=tile.step,
    )
