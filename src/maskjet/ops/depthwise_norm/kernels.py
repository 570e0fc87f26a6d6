"""The device code of depthwise_norm; see `depthwise_norm/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


@triton.jit(do_not_specialize=["eps"])
def depthwise_norm_kernel(
    image_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    eps,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    WAITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute ROWS × COLUMNS pixels; grid (tiles across, tiles down, B).

    image: floats [B, HEIGHT, WIDTH, CHANNELS]. weight: float32 [9, CHANNELS], row by row. bias: float32 [CHANNELS].

    out: floats, like the image.

    Goes down the rows, reading each once: it ends the sum of the pixels above it, goes on with those beside it, and
    begins those below it.
    """
    x = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    above = tl.program_id(1) * ROWS - 1 + tl.zeros((COLUMNS,), tl.int32)
    channel = tl.arange(0, CHANNELS)
    offset = tl.program_id(2).to(tl.int64) * (HEIGHT * WIDTH * CHANNELS)
    bias = tl.load(bias_ptr + channel)[None, :]
    # All nine before the loop, in which each would be moved between threads again.
    upper = _load_weights(weight_ptr + channel, CHANNELS)
    middle = _load_weights(weight_ptr + 3 * CHANNELS + channel, CHANNELS)
    lower = _load_weights(weight_ptr + 6 * CHANNELS + channel, CHANNELS)
    if WAITS:
        gdc_wait()
    ending = tl.zeros((COLUMNS, CHANNELS), tl.float32)
    going = tl.zeros((COLUMNS, CHANNELS), tl.float32)
    for step in range(ROWS + 2):
        y = above + step
        is_row = (y >= 0) & (y < HEIGHT)
        pixels_ptr = image_ptr + offset + (y * WIDTH + x)[:, None] * CHANNELS + channel[None, :]
        left = _load(pixels_ptr - CHANNELS, is_row & (x > 0) & (x <= WIDTH))
        centre = _load(pixels_ptr, is_row & (x < WIDTH))
        right = _load(pixels_ptr + CHANNELS, is_row & (x < WIDTH - 1))
        ending = _add_row(ending, left, centre, right, lower)
        if step >= 2:
            ending = ending - (tl.sum(ending, axis=1) / CHANNELS)[:, None]
            inverse = tl.math.rsqrt(tl.sum(ending * ending, axis=1) / CHANNELS + eps)
            pixels_ptr = out_ptr + offset + ((y - 1) * WIDTH + x)[:, None] * CHANNELS + channel[None, :]
            value = (ending * inverse[:, None]).to(out_ptr.dtype.element_ty)
            tl.store(pixels_ptr, value, mask=((x < WIDTH) & (y <= HEIGHT))[:, None])
        ending = _add_row(going, left, centre, right, middle)
        going = _add_row(bias, left, centre, right, upper)


@triton.jit
def _load(pixels_ptr, is_pixel):
    return tl.load(pixels_ptr, mask=is_pixel[:, None], other=0.0).to(tl.float32)


@triton.jit
def _load_weights(weight_ptr, CHANNELS: tl.constexpr):
    """A row of the kernel."""
    left, centre = tl.load(weight_ptr), tl.load(weight_ptr + CHANNELS)
    return left[None, :], centre[None, :], tl.load(weight_ptr + 2 * CHANNELS)[None, :]


@triton.jit
def _add_row(total, left, centre, right, weights):
    """Add a row of pixels under a row of the kernel."""
    of_left, of_centre, of_right = weights
    return total + left * of_left + centre * of_centre + right * of_right
