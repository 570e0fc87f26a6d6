"""The device code of resize_pixels; see `resize_pixels/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from maskjet.ops.triton_language import taps


@triton.jit(do_not_specialize=["source_height", "source_width", "height", "width", "down_scale", "across_scale"])
def resize_pixels_kernel(
    image_ptr,
    out_ptr,
    source_height,
    source_width,
    height,
    width,
    down_scale,
    across_scale,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Compute ROWS × COLUMNS pixels; grid (tiles across, tiles down, B).

    image: floats [B, source_height, source_width, CHANNELS]. down_scale, across_scale: source pixels per pixel.

    out: floats [B, height, width, CHANNELS].
    """
    y = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None, None]
    x = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :, None]
    channel = tl.arange(0, CHANNELS)[None, None, :]
    batch = tl.program_id(2).to(tl.int64)
    upper, lower, below = taps(y, down_scale, source_height)
    first, second, after = taps(x, across_scale, source_width)
    above, before = 1.0 - below, 1.0 - after
    image_ptr += batch * source_height * source_width * CHANNELS
    upper_ptr = image_ptr + upper * source_width * CHANNELS
    lower_ptr = image_ptr + lower * source_width * CHANNELS
    first, second = first * CHANNELS + channel, second * CHANNELS + channel
    if WAITS:
        gdc_wait()
    # Without a mask: taps of pixels beyond the result are inside the image, too.
    value = tl.load(upper_ptr + first).to(tl.float32) * (above * before)
    value += tl.load(upper_ptr + second).to(tl.float32) * (above * after)
    value += tl.load(lower_ptr + first).to(tl.float32) * (below * before)
    value += tl.load(lower_ptr + second).to(tl.float32) * (below * after)
    if WAITS:
        gdc_launch_dependents()
    pixel_ptr = out_ptr + batch * height * width * CHANNELS + (y * width + x) * CHANNELS + channel
    tl.store(pixel_ptr, value.to(out_ptr.dtype.element_ty), mask=(y < height) & (x < width))
