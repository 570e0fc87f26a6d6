"""The device code of mask_logits; see `mask_logits/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from maskjet.ops.triton_language import dot


@triton.jit
def mask_logits_kernel(
    queries_ptr,
    pixels_ptr,
    out_ptr,
    QUERIES: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Compute some pixels of some queries' masks; grid (blocks of pixels, blocks of queries, B).

    queries: floats [B, QUERIES, STRIDE], of which CHANNELS and a constant are read. pixels: floats
    [B, PIXELS, CHANNELS].

    out: floats [B, QUERIES, PIXELS].
    """
    image = tl.program_id(2).to(tl.int64)
    query = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    pixel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_query, is_pixel = query < QUERIES, pixel < PIXELS
    step = tl.arange(0, STEP)
    queries_ptr += (image * QUERIES + tl.where(is_query, query, 0)) * STRIDE
    pixels_ptr += (image * PIXELS + tl.where(is_pixel, pixel, 0)) * CHANNELS
    if WAITS:
        gdc_wait()
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, CHANNELS, STEP):
        first = tl.load(queries_ptr[:, None] + start + step[None, :])
        product = dot(first, tl.load(pixels_ptr[None, :] + start + step[:, None]), product)
    if WAITS:
        gdc_launch_dependents()
    product += tl.load(queries_ptr + CHANNELS).to(tl.float32)[:, None]
    out_ptr += (image * QUERIES + query)[:, None] * PIXELS + pixel[None, :]
    tl.store(out_ptr, product.to(out_ptr.dtype.element_ty), mask=is_query[:, None] & is_pixel[None, :])
