"""linear on an NVIDIA GPU: one launch, a tile of the output per program.

The norm before the layer costs nothing of its own: its affine is in the weights, whose rows have no mean, so that the
mean of an input drops out, and the deviation comes from sums that the layer in front wrote with its output.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from maskjet.ops.gpu import Launcher, has_dependent_launches, on_device_of
from maskjet.ops.linear.kernels import linear_kernel
from maskjet.ops.linear.reference import Norm

_LAUNCHERS: dict[tuple[int, int, bool], Launcher] = {}


class Tile(NamedTuple):
    """The shape of a launch."""

    rows: int
    """Rows of the output per program."""
    columns: int
    """Columns of the output per program."""
    step: int
    """Inputs per step."""
    warps: int
    """Warps per program."""
    stages: int
    """Steps whose inputs are under way at once."""


def choose_tile(rows: int, inputs: int, outputs: int, *, has_norm: bool = False) -> Tile:
    """The shape for a product: small tiles where there are few, so that all multiprocessors have some.

    A norm behind it needs whole rows.
    """
    columns = next((side for side in (128, 64, 32, 16) if outputs % side == 0), 16)
    step = next((side for side in (64, 32, 16) if inputs % side == 0), 16)
    if has_norm:
        return Tile(64 if rows >= 64 * _MULTIPROCESSORS else 16, outputs, step, 4, 3)
    if triton.cdiv(rows, 128) * (outputs // columns) >= 2 * _MULTIPROCESSORS:
        return Tile(128, columns, step, 8, 3)
    columns = min(columns, 64)
    return Tile(64 if rows > 64 else 16, columns, step, 4, 4)


_MULTIPROCESSORS = 132  # of an H100 or H200


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None,
    sums: torch.Tensor | None,
    out: torch.Tensor,
    out_sums: torch.Tensor | None,
    *,
    norm: Norm | None,
    activation: str,
    eps: float,
) -> None:
    """Write the layer's result into out [M, N]; see `ops.linear`.

    Never waits, and can be captured in a CUDA graph.
    """
    (rows, inputs), outputs = x.shape, len(weight)
    if not rows:
        return
    tile = choose_tile(rows, inputs, outputs, has_norm=norm is not None)
    if out_sums is not None:
        tile = tile._replace(columns=outputs // out_sums.shape[2])
    waits = has_dependent_launches(x.device)
    key = (tile.warps, tile.stages, waits)
    if key not in _LAUNCHERS:
        options = {"launch_pdl": True} if waits else {}
        _LAUNCHERS[key] = Launcher(linear_kernel, num_warps=tile.warps, num_stages=tile.stages, **options)
    with on_device_of(x):
        _LAUNCHERS[key](
            (triton.cdiv(rows, tile.rows) * (outputs // tile.columns), 1, 1),
            (x.device, x.dtype, out.dtype),
            x,
            weight,
            bias,
            out if residual is None else residual,
            bias if sums is None else sums,
            bias if norm is None else norm.weight,
            bias if norm is None else norm.bias,
            out,
            bias if out_sums is None else out_sums,
            rows,
            eps,
            0.0 if norm is None else norm.eps,
            INPUTS=inputs,
            OUTPUTS=outputs,
            X_STRIDE=x.stride(0),
            OUT_STRIDE=out.stride(0),
            RESIDUAL_STRIDE=0 if residual is None else residual.stride(0),
            PARTS=0 if sums is None else sums.shape[2],
            ACTIVATION=activation,
            HAS_RESIDUAL=residual is not None,
            HAS_NORM=norm is not None,
            HAS_OUT_SUMS=out_sums is not None,
            WAITS=waits,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            STEP=tile.step,
        )
