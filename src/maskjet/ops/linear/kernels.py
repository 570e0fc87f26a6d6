"""The device code of linear; see `linear/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from maskjet.ops.triton_language import dot, gelu, sigmoid


@triton.jit(do_not_specialize=["rows", "eps", "residual_eps", "norm_eps", "last_eps"])
def linear_kernel(
    x_ptr,
    rows_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    sums_ptr,
    residual_sums_ptr,
    residual_weight_ptr,
    residual_bias_ptr,
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
    residual_eps,
    norm_eps,
    last_eps,
    INPUTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    KEPT: tl.constexpr,
    X_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    RESIDUAL_STRIDE: tl.constexpr,
    PARTS: tl.constexpr,
    RESIDUAL_PARTS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_LAST_NORM: tl.constexpr,
    HAS_OUT_SUMS: tl.constexpr,
    GIVES_MAXIMA: tl.constexpr,
    READS_EARLY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    SPLITS: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Compute one tile of a linear layer, or a partial sum of it; grid (tiles down × tiles across, SPLITS).

    x: floats [any, INPUTS]. rows: int32 [rows], read if HAS_ROWS: the rows of x to take, -1 for zeros. The input has
    each row SEGMENTS times side by side; or, with HEIGHT and 9 SEGMENTS, the pixels around each pixel of images
    HEIGHT × WIDTH. weight: floats [OUTPUTS, SEGMENTS × INPUTS]. bias: float32 [OUTPUTS]. residual: floats
    [rows, OUTPUTS], read if HAS_RESIDUAL. sums: float32 [any, 2, PARTS], of the rows of x, read if PARTS, where
    HEIGHT is 0. residual_sums: float32 [rows, 2, RESIDUAL_PARTS], and residual_weight and residual_bias: float32
    [OUTPUTS], read if RESIDUAL_PARTS. norm, last: float32 [OUTPUTS], read if HAS_NORM and HAS_LAST_NORM, where COLUMNS
    is OUTPUTS.

    out: floats [rows, KEPT]; with GIVES_MAXIMA float32 [rows, OUTPUTS / COLUMNS], the largest of each tile's columns.
    out_sums: float32 [rows, 2, OUTPUTS / COLUMNS], of the values in out before rounding.

    parts: float32 [tiles, SPLITS, ROWS × COLUMNS], partial sums. arrived: int32 [tiles], zeros that are zeros
    afterwards. Both are used if SPLITS is above 1: the last program of a tile adds the partial sums and goes on alone.

    READS_EARLY: load the residual before the product, where both fit into registers.
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
    # Prefetch the operands of the epilogue before the product; parameters even before the previous
    # kernel has ended.
    bias = tl.load(bias_ptr + column)
    if RESIDUAL_PARTS:
        residual_affine = _load_affine(residual_weight_ptr, residual_bias_ptr, column)
    if HAS_NORM:
        norm_affine = _load_affine(norm_weight_ptr, norm_bias_ptr, column)
    if HAS_LAST_NORM:
        last_affine = _load_affine(last_weight_ptr, last_bias_ptr, column)
    if WAITS:
        gdc_wait()
    target = row.to(tl.int64)
    source = tl.load(rows_ptr + row) if HAS_ROWS else row
    given_row = tl.maximum(source, 0).to(tl.int64)
    residual_ptr += target[:, None] * RESIDUAL_STRIDE + column[None, :]
    if PARTS:
        sums = _load_sums(sums_ptr, given_row, PARTS)
    if RESIDUAL_PARTS:
        residual_sums = _load_sums(residual_sums_ptr, target, RESIDUAL_PARTS)
    if HAS_RESIDUAL and READS_EARLY:
        residual = tl.load(residual_ptr)
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = x_ptr + given_row[:, None] * X_STRIDE + step[None, :]
    for start in range(begin, begin + share, STEP):
        # A hint for vectorised loads: the compiler can't prove that the remainder is a multiple of STEP.
        place = tl.multiple_of(start % INPUTS, STEP) if SEGMENTS > 1 else start
        if HEIGHT:
            across_by, down_by = start // INPUTS % 3 - 1, start // INPUTS // 3 - 1
            x = row % WIDTH + across_by
            y = row // WIDTH % HEIGHT + down_by
            is_pixel = (x >= 0) & (x < WIDTH) & (y >= 0) & (y < HEIGHT)
            moved = first + (down_by * WIDTH + across_by) * X_STRIDE + place
            given = tl.load(moved, mask=is_pixel[:, None], other=0.0)
        elif HAS_ROWS:
            given = tl.load(first + place, mask=(source >= 0)[:, None], other=0.0)
        else:
            given = tl.load(first + place)
        product = dot(given, tl.load(weight_ptr + start), product)
    if WAITS:
        gdc_launch_dependents()  # dependent kernels still wait for the stores below
    if SPLITS > 1:
        part = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        parts_ptr += tile * (SPLITS * ROWS * COLUMNS)
        tl.store(parts_ptr + tl.program_id(1) * (ROWS * COLUMNS) + part, product)
        tl.debug_barrier()  # the whole partial sum is written before the program counts as arrived
        if tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel", scope="gpu") < SPLITS - 1:
            return
        product = tl.zeros((ROWS, COLUMNS), tl.float32)
        for split in tl.static_range(SPLITS):  # summed in a fixed order, for determinism
            # Bypass the first-level cache, which does not see writes of other multiprocessors.
            product += tl.load(parts_ptr + split * (ROWS * COLUMNS) + part, cache_modifier=".cg")
        tl.store(arrived_ptr + tile, 0)
    if PARTS:
        _, inverse = _measure(sums, eps, INPUTS)
        product *= inverse[:, None]
    value = product + bias[None, :]
    if not HAS_NORM:
        value = _activate(value, ACTIVATION)
    if HAS_RESIDUAL:
        added = (residual if READS_EARLY else tl.load(residual_ptr)).to(tl.float32)
        if RESIDUAL_PARTS:
            mean, inverse = _measure(residual_sums, residual_eps, OUTPUTS)
            weight, offset = residual_affine
            added = (added - mean[:, None]) * inverse[:, None] * weight[None, :] + offset[None, :]
        value += added
    if HAS_NORM:
        value = _activate(_normalise(value, norm_affine, norm_eps, OUTPUTS), ACTIVATION)
    if HAS_LAST_NORM:
        value = _normalise(value, last_affine, last_eps, OUTPUTS)
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
def _load_affine(weight_ptr, bias_ptr, column):
    return tl.load(weight_ptr + column), tl.load(bias_ptr + column)


@triton.jit
def _load_sums(sums_ptr, row, PARTS: tl.constexpr):
    """Partial sums and sums of squares of rows."""
    part = tl.arange(0, triton.next_power_of_2(PARTS))[None, :]
    sums_ptr += row[:, None] * (2 * PARTS) + part
    is_part = part < PARTS
    return tl.load(sums_ptr, mask=is_part, other=0.0), tl.load(sums_ptr + PARTS, mask=is_part, other=0.0)


@triton.jit
def _measure(sums, eps, WIDTH: tl.constexpr):
    """The mean of rows, and 1 / their standard deviation."""
    total, squares = sums
    mean = tl.sum(total, axis=1) / WIDTH
    return mean, tl.math.rsqrt(tl.sum(squares, axis=1) / WIDTH - mean * mean + eps)


@triton.jit
def _normalise(value, affine, eps, OUTPUTS: tl.constexpr):
    """A layer norm of whole rows."""
    weight, offset = affine
    value = value - (tl.sum(value, axis=1) / OUTPUTS)[:, None]
    inverse = tl.math.rsqrt(tl.sum(value * value, axis=1) / OUTPUTS + eps)
    return value * inverse[:, None] * weight[None, :] + offset[None, :]


@triton.jit
def _activate(value, ACTIVATION: tl.constexpr):
    if ACTIVATION == "gelu":
        value = gelu(value)
    elif ACTIVATION == "relu":
        value = tl.maximum(value, 0.0)
    elif ACTIVATION == "silu":
        value = value * sigmoid(value)
    return value


@triton.jit(do_not_specialize=["rows", "eps"])
def bulk_linear_kernel(
    x,
    weight,
    bias_ptr,
    residual,
    sums_ptr,
    out,
    out_sums_ptr,
    rows,
    eps,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_OUT_SUMS: tl.constexpr,
    IS_PERSISTENT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Compute tiles of a linear layer one after the other, with bulk copies of their operands; grid (programs).

    x, weight, residual, out: tensor descriptors of these operands of linear_kernel, with blocks [ROWS, STEP],
    [COLUMNS, STEP] and, for residual and out, [ROWS, COLUMNS / 2]. Other arguments are those of linear_kernel.

    IS_PERSISTENT: there are fewer programs than tiles, and the next tile's input is loaded while a tile is stored.
    """
    across: tl.constexpr = OUTPUTS // COLUMNS
    half: tl.constexpr = COLUMNS // 2
    if WAITS:
        gdc_wait()
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS) * across, tl.num_programs(0), flatten=IS_PERSISTENT):
        top, left = tile // across * ROWS, tile % across * COLUMNS
        product = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, INPUTS, STEP):
            product = dot(x.load([top, start]), weight.load([left, start]).T, product)
        row = top + tl.arange(0, ROWS)
        is_row = row < rows
        target = row.to(tl.int64)
        if PARTS:
            _, inverse = _measure(_load_sums(sums_ptr, tl.where(is_row, target, 0), PARTS), eps, INPUTS)
            product *= inverse[:, None]
        # In two halves, so that stores need half the shared memory.
        first, second = tl.split(tl.permute(tl.reshape(product, (ROWS, 2, half)), (0, 2, 1)))
        first = _finish_half(first, bias_ptr, residual, out, top, left, half, ACTIVATION, HAS_RESIDUAL)
        second = _finish_half(second, bias_ptr, residual, out, top, left + half, half, ACTIVATION, HAS_RESIDUAL)
        if HAS_OUT_SUMS:
            out_sums_ptrs = out_sums_ptr + target * (2 * across) + tile % across
            squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
            tl.store(out_sums_ptrs, tl.sum(first, axis=1) + tl.sum(second, axis=1), mask=is_row)
            tl.store(out_sums_ptrs + across, squares, mask=is_row)


@triton.jit
def _finish_half(
    value,
    bias_ptr,
    residual,
    out,
    top,
    left,
    COLUMNS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """The epilogue for half of a tile's columns; stores the values, and returns them before rounding."""
    value = _activate(value + tl.load(bias_ptr + left + tl.arange(0, COLUMNS))[None, :], ACTIVATION)
    if HAS_RESIDUAL:
        value += residual.load([top, left]).to(tl.float32)
    out.store([top, left], value.to(out.dtype))
    return value
