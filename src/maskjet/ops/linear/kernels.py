"""The device code of linear; see `linear/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from maskjet.ops.triton_language import dot, gelu, sigmoid


@triton.jit(do_not_specialize=["rows", "eps", "norm_eps"])
def linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    sums_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    out_ptr,
    out_sums_ptr,
    rows,
    eps,
    norm_eps,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    X_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    RESIDUAL_STRIDE: tl.constexpr,
    PARTS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_OUT_SUMS: tl.constexpr,
    WAITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Compute one tile of a linear layer; grid (tiles down × tiles across).

    x: floats [rows, INPUTS]. weight: floats [OUTPUTS, INPUTS]. bias: float32 [OUTPUTS]. residual: floats
    [rows, OUTPUTS], read if HAS_RESIDUAL. sums: float32 [rows, 2, PARTS], of x, read if PARTS. norm_weight, norm_bias:
    float32 [OUTPUTS], read if HAS_NORM, where COLUMNS is OUTPUTS.

    out: floats [rows, OUTPUTS]. out_sums: float32 [rows, 2, OUTPUTS / COLUMNS], of the values in out before rounding.

    With WAITS the weights are fetched before the kernel in front has ended, the rest after it.
    """
    across: tl.constexpr = OUTPUTS // COLUMNS
    tile = tl.program_id(0) % across
    row = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    step = tl.arange(0, STEP)
    is_row = row < rows
    source = tl.where(is_row, row, 0).to(tl.int64)
    x_ptr += source[:, None] * X_STRIDE + step[None, :]
    weight_ptr += column[None, :] * INPUTS + step[:, None]
    bias = tl.load(bias_ptr + column)
    if WAITS:
        gdc_wait()
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, INPUTS, STEP):
        product = dot(tl.load(x_ptr + start), tl.load(weight_ptr + start), product)
    if PARTS:
        product *= _inverse_deviation(sums_ptr, source, eps, PARTS, INPUTS)[:, None]
    value = product + bias[None, :]
    if not HAS_NORM:
        value = _activate(value, ACTIVATION)
    if HAS_RESIDUAL:
        value += tl.load(residual_ptr + source[:, None] * RESIDUAL_STRIDE + column[None, :]).to(tl.float32)
    if HAS_NORM:
        value = value - (tl.sum(value, axis=1) / OUTPUTS)[:, None]
        inverse = tl.math.rsqrt(tl.sum(value * value, axis=1) / OUTPUTS + norm_eps)
        value = value * inverse[:, None] * tl.load(norm_weight_ptr + column)[None, :]
        value = _activate(value + tl.load(norm_bias_ptr + column)[None, :], ACTIVATION)
    out_ptr += source[:, None] * OUT_STRIDE + column[None, :]
    tl.store(out_ptr, value.to(out_ptr.dtype.element_ty), mask=is_row[:, None])
    if HAS_OUT_SUMS:
        out_sums_ptr += source * (2 * across) + tile
        tl.store(out_sums_ptr, tl.sum(value, axis=1), mask=is_row)
        tl.store(out_sums_ptr + across, tl.sum(value * value, axis=1), mask=is_row)


@triton.jit
def _inverse_deviation(sums_ptr, row, eps, PARTS: tl.constexpr, INPUTS: tl.constexpr):
    """1 / the standard deviation of rows, from their sums and sums of squares in parts."""
    part = tl.arange(0, triton.next_power_of_2(PARTS))[None, :]
    sums_ptr += row[:, None] * (2 * PARTS) + part
    mean = tl.sum(tl.load(sums_ptr, mask=part < PARTS, other=0.0), axis=1) / INPUTS
    square = tl.sum(tl.load(sums_ptr + PARTS, mask=part < PARTS, other=0.0), axis=1) / INPUTS
    return tl.math.rsqrt(square - mean * mean + eps)


@triton.jit
def _activate(value, ACTIVATION: tl.constexpr):
    if ACTIVATION == "gelu":
        value = gelu(value)
    elif ACTIVATION == "relu":
        value = tl.maximum(value, 0.0)
    elif ACTIVATION == "silu":
        value = value * sigmoid(value)
    return value
