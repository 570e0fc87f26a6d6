"""linear on an NVIDIA GPU: one launch, a tile of the output per program.

A LayerNorm before the layer is folded: its affine is in the weights, whose rows have mean 0, so that the mean of an
input drops out. Its deviation comes from row sums that the epilogue of the previous layer wrote.
"""

from __future__ import annotations

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from maskjet.ops.gpu import MULTIPROCESSORS, Launchers, has_bulk_copies
from maskjet.ops.linear.kernels import bulk_linear_kernel, linear_kernel
from maskjet.ops.linear.reference import Norm
from maskjet.ops.linear.tiles import Tile, Workspace, choose_tile, fit

_LAUNCHERS = Launchers(linear_kernel)
_BULK_LAUNCHERS = Launchers(bulk_linear_kernel)
_FEW_VALUES = 32 * 64  # values of a tile per warp, up to which registers can hold the residual as well


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    out: torch.Tensor,
    rows: torch.Tensor | None = None,
    image_hw: tuple[int, int] | None = None,
    residual: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
    out_sums: torch.Tensor | None = None,
    residual_norm: Norm | None = None,
    residual_sums: torch.Tensor | None = None,
    norm: Norm | None = None,
    last_norm: Norm | None = None,
    activation: str = "none",
    eps: float = 1e-6,
    gives_maxima: bool = False,
    workspace: Workspace | None = None,
) -> None:
    """Write the layer's result into out; see the reference."""
    (outputs, width), inputs, count = weight.shape, x.shape[1], len(out)
    if not count:
        return
    is_whole = norm is not None or last_norm is not None
    tile = choose_tile(count, width, outputs, inputs=inputs, is_whole=is_whole)
    # The shapes of the caller's buffers fix the number of tiles across.
    given_parts = out.shape[1] if gives_maxima else None if out_sums is None else out_sums.shape[2]
    if given_parts is not None:
        tile = tile._replace(columns=outputs // given_parts)
    is_plain = rows is None and image_hw is None and residual_norm is None and not is_whole and inputs == width
    if tile.programs and is_plain and out.dtype == x.dtype and has_bulk_copies(x.device):
        _launch_bulk(tile, x, weight, bias, out, residual, sums, out_sums, activation, eps)
        return
    tile = fit(tile, x.device)
    parts = arrived = bias
    if workspace is None:
        tile = tile._replace(splits=1)
    elif tile.splits > 1:
        parts, arrived = workspace.take(tile, count, outputs, x.device)
    height, across = image_hw or (0, 0)
    residual_weight, residual_bias, residual_eps = residual_norm or (bias, bias, 0.0)
    norm_weight, norm_bias, norm_eps = norm or (bias, bias, 0.0)
    last_weight, last_bias, last_eps = last_norm or (bias, bias, 0.0)
    _LAUNCHERS.of(x.device, tile.warps, tile.stages, len(out))(
        (triton.cdiv(count, tile.rows) * (outputs // tile.columns), tile.splits, 1),
        (x.device, x.dtype, out.dtype),
        x,
        x if rows is None else rows,
        weight,
        bias,
        out if residual is None else residual,
        bias if sums is None else sums,
        bias if residual_sums is None else residual_sums,
        residual_weight,
        residual_bias,
        norm_weight,
        norm_bias,
        last_weight,
        last_bias,
        out,
        bias if out_sums is None else out_sums,
        parts,
        arrived,
        count,
        eps,
        residual_eps,
        norm_eps,
        last_eps,
        INPUTS=inputs,
        SEGMENTS=width // inputs,
        HEIGHT=height,
        WIDTH=across,
        OUTPUTS=outputs,
        KEPT=out.shape[1],
        X_STRIDE=x.stride(0),
        OUT_STRIDE=out.stride(0),
        RESIDUAL_STRIDE=0 if residual is None else residual.stride(0),
        PARTS=0 if sums is None else sums.shape[2],
        RESIDUAL_PARTS=0 if residual_sums is None else residual_sums.shape[2],
        ACTIVATION=activation,
        HAS_ROWS=rows is not None,
        HAS_RESIDUAL=residual is not None,
        HAS_NORM=norm is not None,
        HAS_LAST_NORM=last_norm is not None,
        HAS_OUT_SUMS=out_sums is not None,
        GIVES_MAXIMA=gives_maxima,
        READS_EARLY=tile.rows * tile.columns <= _FEW_VALUES * tile.warps,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        STEP=tile.step,
        SPLITS=tile.splits,
    )


def _launch_bulk(
    tile: Tile,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor,
    residual: torch.Tensor | None,
    sums: torch.Tensor | None,
    out_sums: torch.Tensor | None,
    activation: str,
    eps: float,
) -> None:
    """Launch a layer without gathered rows, convolution or norms other than by `sums`."""
    outputs, inputs = weight.shape
    half = [tile.rows, tile.columns // 2]
    tiles = triton.cdiv(len(out), tile.rows) * (outputs // tile.columns)
    programs = min(tile.programs * MULTIPROCESSORS, tiles)
    _BULK_LAUNCHERS.of(x.device, tile.warps, tile.stages, len(out))(
        (programs, 1, 1),
        (x.device, x.dtype),
        TensorDescriptor.from_tensor(x, [tile.rows, tile.step]),
        TensorDescriptor.from_tensor(weight, [tile.columns, tile.step]),
        bias,
        TensorDescriptor.from_tensor(out if residual is None else residual, half),
        bias if sums is None else sums,
        TensorDescriptor.from_tensor(out, half),
        bias if out_sums is None else out_sums,
        len(out),
        eps,
        INPUTS=inputs,
        OUTPUTS=outputs,
        PARTS=0 if sums is None else sums.shape[2],
        ACTIVATION=activation,
        HAS_RESIDUAL=residual is not None,
        HAS_OUT_SUMS=out_sums is not None,
        IS_PERSISTENT=programs < tiles,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        STEP=tile.step,
    )
