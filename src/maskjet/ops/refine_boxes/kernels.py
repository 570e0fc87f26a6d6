"""The device code of refine_boxes; see `refine_boxes/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize=["rows"])
def refine_boxes_kernel(
    hidden_ptr,
    weight_ptr,
    bias_ptr,
    references_ptr,
    rows_ptr,
    offsets_ptr,
    frequencies_ptr,
    out_ptr,
    embedding_ptr,
    rows,
    INPUTS: tl.constexpr,
    REFERENCES: tl.constexpr,
    OFFSETS: tl.constexpr,
    FREQUENCIES: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Move some boxes; grid (blocks of rows).

    hidden: floats [rows, INPUTS]. weight: float32 [4, INPUTS]. bias: float32 [4]. references: float32 [REFERENCES, 4].
    rows: int32 [rows], read if HAS_ROWS; a row's reference is their remainder by REFERENCES. offsets: float32
    [OFFSETS, 4], repeated, read if OFFSETS. frequencies: float32 [FREQUENCIES], read if FREQUENCIES.

    out: float32 [rows, 4]. embedding: floats [rows, 4, FREQUENCIES].
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < rows
    row = tl.where(is_row, row, 0)
    column = tl.arange(0, triton.next_power_of_2(INPUTS))
    is_column = (column < INPUTS)[None, :]
    # Weights can be loaded before the previous kernels end: none of them writes weights.
    layer = (
        _load_layer(weight_ptr, bias_ptr, column, is_column),
        _load_layer(weight_ptr + INPUTS, bias_ptr + 1, column, is_column),
        _load_layer(weight_ptr + 2 * INPUTS, bias_ptr + 2, column, is_column),
        _load_layer(weight_ptr + 3 * INPUTS, bias_ptr + 3, column, is_column),
    )
    if WAITS:
        gdc_wait()
    hidden = tl.load(hidden_ptr + row[:, None] * INPUTS + column[None, :], mask=is_column, other=0.0).to(tl.float32)
    reference = tl.load(rows_ptr + row) % REFERENCES if HAS_ROWS else row
    references_ptr += reference * 4
    x, y, width, height = _move(
        tl.load(references_ptr),
        tl.load(references_ptr + 1),
        tl.load(references_ptr + 2),
        tl.load(references_ptr + 3),
        _product(hidden, layer[0]),
        _product(hidden, layer[1]),
        _product(hidden, layer[2]),
        _product(hidden, layer[3]),
    )
    if OFFSETS:
        offsets_ptr += row % OFFSETS * 4
        x, y, width, height = _move(
            x,
            y,
            width,
            height,
            tl.load(offsets_ptr),
            tl.load(offsets_ptr + 1),
            tl.load(offsets_ptr + 2),
            tl.load(offsets_ptr + 3),
        )
    if WAITS:
        gdc_launch_dependents()
    tl.store(out_ptr + row * 4, x, mask=is_row)
    tl.store(out_ptr + row * 4 + 1, y, mask=is_row)
    tl.store(out_ptr + row * 4 + 2, width, mask=is_row)
    tl.store(out_ptr + row * 4 + 3, height, mask=is_row)
    if FREQUENCIES:
        embedding_ptr += row[:, None].to(tl.int64) * (4 * FREQUENCIES)
        _embed(y, embedding_ptr, frequencies_ptr, is_row, FREQUENCIES)
        _embed(x, embedding_ptr + FREQUENCIES, frequencies_ptr, is_row, FREQUENCIES)
        _embed(width, embedding_ptr + 2 * FREQUENCIES, frequencies_ptr, is_row, FREQUENCIES)
        _embed(height, embedding_ptr + 3 * FREQUENCIES, frequencies_ptr, is_row, FREQUENCIES)


@triton.jit
def _load_layer(weight_ptr, bias_ptr, column, is_column):
    """The weights and bias of one output."""
    return tl.load(weight_ptr + column[None, :], mask=is_column, other=0.0), tl.load(bias_ptr)


@triton.jit
def _product(hidden, layer):
    weight, bias = layer
    return tl.sum(hidden * weight, axis=1) + bias


@triton.jit
def _move(x, y, width, height, dx, dy, log_width, log_height):
    """Shift a box's coordinate by a share of its size, and scale the size."""
    return dx * width + x, dy * height + y, tl.exp(log_width) * width, tl.exp(log_height) * height


@triton.jit
def _embed(value, embedding_ptr, frequencies_ptr, is_row, FREQUENCIES: tl.constexpr):
    """Sines of a coordinate's even angles, cosines of its odd ones."""
    index = tl.arange(0, triton.next_power_of_2(FREQUENCIES))
    is_index = index < FREQUENCIES
    angle = value[:, None] * tl.load(frequencies_ptr + index, mask=is_index, other=0.0)[None, :]
    wave = tl.where((index % 2 == 0)[None, :], tl.sin(angle), tl.cos(angle))
    mask = is_row[:, None] & is_index[None, :]
    tl.store(embedding_ptr + index[None, :], wave.to(embedding_ptr.dtype.element_ty), mask=mask)
