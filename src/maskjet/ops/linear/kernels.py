"""The device code of linear; see `linear/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from maskjet.ops.triton_language import dot, gelu, sigmoid


@triton.jit(do_not_specialize=["rows", "eps", "norm_eps", "last_eps"])
def linear_kernel(
    x_ptr,
    rows_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    sums_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    last_weight_ptr,
    last_bias_ptr,
    out_ptr,
    out_sums_ptr,
    parts_ptr,
    arrived_ptr,
    rows,
    eps,
    norm_eps,
    last_eps,
    INPUTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    KEPT: tl.constexpr,
    X_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    RESIDUAL_STRIDE: tl.constexpr,
    PARTS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_LAST_NORM: tl.constexpr,
    HAS_OUT_SUMS: tl.constexpr,
    GIVES_MAXIMA: tl.constexpr,
    WAITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Compute one tile of a linear layer, or a part of its sum; grid (tiles down × tiles across, SPLITS).

    x: floats [any, INPUTS]. rows: int32 [SEGMENTS, rows], read if HAS_ROWS: the rows of x that lie side by side in a
    row of the layer's input, -1 for zeros; without it, the row itself SEGMENTS times. weight: floats [OUTPUTS, SEGMENTS
    × INPUTS]. bias: float32 [OUTPUTS]. residual: floats [rows, OUTPUTS], read if HAS_RESIDUAL. sums: float32
    [any, 2, PARTS], of the rows of x, read if PARTS, where SEGMENTS is 1. norm, last: float32 [OUTPUTS], read if
    HAS_NORM and HAS_LAST_NORM, where COLUMNS is OUTPUTS.

    out: floats [rows, KEPT]; with GIVES_MAXIMA float32 [rows, OUTPUTS / COLUMNS], the largest of each tile's columns.
    out_sums: float32 [rows, 2, OUTPUTS / COLUMNS], of the values in out before rounding.

    parts: float32 [tiles, SPLITS, ROWS × COLUMNS], and arrived: int32 [tiles], zeros that are zeros afterwards; used if
    SPLITS is above 1. Whichever program of a tile is last adds all parts and does what follows.
    """
    across: tl.constexpr = OUTPUTS // COLUMNS
    tile = tl.program_id(0)
    row = (tile // across) * ROWS + tl.arange(0, ROWS)
    column = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
    step = tl.arange(0, STEP)
    is_row = row < rows
    row = tl.where(is_row, row, 0)
    weight_ptr += column[None, :] * (SEGMENTS * INPUTS) + step[:, None]
    share: tl.constexpr = SEGMENTS * INPUTS // SPLITS
    begin = tl.program_id(1) * share
    if WAITS:
        gdc_wait()
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    source = tl.load(rows_ptr + row) if HAS_ROWS else row
    x_ptr += step[None, :]
    first = x_ptr + tl.maximum(source, 0).to(tl.int64)[:, None] * X_STRIDE
    for start in range(begin, begin + share, STEP):
        if SEGMENTS == 1:
            x = tl.load(first + start, mask=(source >= 0)[:, None], other=0.0) if HAS_ROWS else tl.load(first + start)
        elif HAS_ROWS:
            neighbour = tl.load(rows_ptr + (start // INPUTS) * rows + row)
            x_row = x_ptr + tl.maximum(neighbour, 0).to(tl.int64)[:, None] * X_STRIDE
            x = tl.load(x_row + start % INPUTS, mask=(neighbour >= 0)[:, None], other=0.0)
        else:
            x = tl.load(first + start % INPUTS)
        product = dot(x, tl.load(weight_ptr + start), product)
    if SPLITS > 1:
        part = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        parts_ptr += tile * (SPLITS * ROWS * COLUMNS)
        tl.store(parts_ptr + tl.program_id(1) * (ROWS * COLUMNS) + part, product)
        tl.debug_barrier()  # all of the part is written before it counts
        if tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel", scope="gpu") < SPLITS - 1:
            return
        product = tl.zeros((ROWS, COLUMNS), tl.float32)
        for split in tl.static_range(SPLITS):  # in one order, whoever comes last
            # Past the first-level caches, which don't see what other multiprocessors write.
            product += tl.load(parts_ptr + split * (ROWS * COLUMNS) + part, cache_modifier=".cg")
        tl.store(arrived_ptr + tile, 0)
    if PARTS:
        product *= _inverse_deviation(sums_ptr, tl.maximum(source, 0).to(tl.int64), eps, PARTS, INPUTS)[:, None]
    value = product + tl.load(bias_ptr + column)[None, :]
    if not HAS_NORM:
        value = _activate(value, ACTIVATION)
    target = row.to(tl.int64)
    if HAS_RESIDUAL:
        value += tl.load(residual_ptr + target[:, None] * RESIDUAL_STRIDE + column[None, :]).to(tl.float32)
    if HAS_NORM:
        value = _activate(_normalise(value, norm_weight_ptr, norm_bias_ptr, norm_eps, column, OUTPUTS), ACTIVATION)
    if HAS_LAST_NORM:
        value = _normalise(value, last_weight_ptr, last_bias_ptr, last_eps, column, OUTPUTS)
    if GIVES_MAXIMA:
        tl.store(out_ptr + target * across + tile % across, tl.max(value, axis=1), mask=is_row)
    else:
        is_stored = is_row[:, None]
        if KEPT < OUTPUTS:
            is_stored = is_stored & (column < KEPT)[None, :]
        out_ptr += target[:, None] * OUT_STRIDE + column[None, :]
        tl.store(out_ptr, value.to(out_ptr.dtype.element_ty), mask=is_stored)
    if HAS_OUT_SUMS:
        out_sums_ptr += target * (2 * across) + tile % across
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
def _normalise(value, weight_ptr, bias_ptr, eps, column, OUTPUTS: tl.constexpr):
    """A layer norm of whole rows."""
    value = value - (tl.sum(value, axis=1) / OUTPUTS)[:, None]
    inverse = tl.math.rsqrt(tl.sum(value * value, axis=1) / OUTPUTS + eps)
    return value * inverse[:, None] * tl.load(weight_ptr + column)[None, :] + tl.load(bias_ptr + column)[None, :]


@triton.jit
def _activate(value, ACTIVATION: tl.constexpr):
    if ACTIVATION == "gelu":
        value = gelu(value)
    elif ACTIVATION == "relu":
        value = tl.maximum(value, 0.0)
    elif ACTIVATION == "silu":
        value = value * sigmoid(value)
    return value
