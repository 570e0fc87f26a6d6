"""The device code of deformable_attention; see `deformable_attention/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_LEAST = tl.constexpr(-1e30)  # below every logit; minus infinity minus itself would be NaN


@triton.jit(do_not_specialize=["rows"])
def deformable_attention_kernel(
    projections_ptr,
    boxes_ptr,
    values_ptr,
    out_ptr,
    rows,
    QUERIES: tl.constexpr,
    POINTS: tl.constexpr,
    HEADS: tl.constexpr,
    SIDE: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUES_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Compute ROWS queries; grid (blocks of queries of all images).

    projections: floats [rows, POINTS, 3, HEADS]: x and y of a point, and its logit. boxes: float32 [rows, 4], cxcywh.
    values: floats [B × HEIGHT × WIDTH, HEADS × SIDE], rows VALUES_STRIDE apart. rows is B × QUERIES.

    out: floats [rows, HEADS × SIDE].

    The softmax is online: sums are relative to the largest logit so far.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < rows
    row = tl.where(is_row, row, 0)
    head = tl.arange(0, HEADS)
    channel = head[None, :, None] * SIDE + tl.arange(0, SIDE)[None, None, :]
    image = (row // QUERIES).to(tl.int64) * (HEIGHT * WIDTH)
    projections_ptr += row[:, None] * (POINTS * 3 * HEADS) + head[None, :]
    if WAITS:
        gdc_wait()
    centre_x = tl.load(boxes_ptr + row * 4)[:, None]
    centre_y = tl.load(boxes_ptr + row * 4 + 1)[:, None]
    reach_x = (tl.load(boxes_ptr + row * 4 + 2) * (0.5 / POINTS))[:, None]
    reach_y = (tl.load(boxes_ptr + row * 4 + 3) * (0.5 / POINTS))[:, None]
    largest = tl.full((ROWS, HEADS), _LEAST, tl.float32)
    total = tl.zeros((ROWS, HEADS), tl.float32)
    context = tl.zeros((ROWS, HEADS, SIDE), tl.float32)
    for point in tl.static_range(POINTS):
        x = tl.load(projections_ptr + (3 * point) * HEADS).to(tl.float32)
        y = tl.load(projections_ptr + (3 * point + 1) * HEADS).to(tl.float32)
        logit = tl.load(projections_ptr + (3 * point + 2) * HEADS).to(tl.float32)
        raised = tl.maximum(largest, logit)
        rescale, weight = tl.exp(largest - raised), tl.exp(logit - raised)
        largest, total = raised, total * rescale + weight
        context = context * rescale[:, :, None]
        x = (centre_x + x * reach_x) * WIDTH - 0.5
        y = (centre_y + y * reach_y) * HEIGHT - 0.5
        left, top = tl.floor(x), tl.floor(y)
        right, low = x - left, y - top
        for corner in tl.static_range(4):
            column, line = left + corner % 2, top + corner // 2
            share = (right if corner % 2 else 1.0 - right) * (low if corner // 2 else 1.0 - low)
            is_inside = (column >= 0) & (column < WIDTH) & (line >= 0) & (line < HEIGHT)
            pixel = tl.where(is_inside, line, 0.0).to(tl.int32) * WIDTH + tl.where(is_inside, column, 0.0).to(tl.int32)
            source = (image[:, None] + pixel) * VALUES_STRIDE
            value = tl.load(values_ptr + source[:, :, None] + channel).to(tl.float32)
            context += value * tl.where(is_inside, share * weight, 0.0)[:, :, None]
    if WAITS:
        gdc_launch_dependents()
    context = context / total[:, :, None]
    out_ptr += row.to(tl.int64)[:, None, None] * (HEADS * SIDE) + channel
    tl.store(out_ptr, context.to(out_ptr.dtype.element_ty), mask=is_row[:, None, None])
