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
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Compute ROWS rows of PAIRS pairs of neighbours; grid (tiles across, tiles down, B).

    image: floats [B, HEIGHT, WIDTH, CHANNELS]. weight: float32 [9, CHANNELS], row by row. bias: float32 [CHANNELS].

    out: floats, like the image.

    Goes down the rows and reads each once: a row completes the sums of the row above, adds to those of its own row, and
    begins those of the row below. The two pixels of a pair share their neighbours.
    """
    x = ((tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)) * 2)[:, None]
    top = tl.program_id(1) * ROWS + tl.zeros((PAIRS, 1), tl.int32)
    end = tl.minimum(top + ROWS + 1, HEIGHT)
    channel = tl.arange(0, CHANNELS)[None, :]
    offset = tl.program_id(2).to(tl.int64) * (HEIGHT * WIDTH * CHANNELS)
    # Adding 0 * x makes every thread load all weights of its pair; else threads would exchange them.
    weight_ptr += channel + 0 * x
    upper = _load_weights(weight_ptr, CHANNELS)
    middle = _load_weights(weight_ptr + 3 * CHANNELS, CHANNELS)
    lower = _load_weights(weight_ptr + 6 * CHANNELS, CHANNELS)
    bias = tl.load(bias_ptr + channel + 0 * x)
    image_ptr += offset + x * CHANNELS + channel
    out_ptr += offset + x * CHANNELS + channel
    if WAITS:
        gdc_wait()
    above = _load_row(image_ptr, top - 1, end, x, WIDTH, CHANNELS)
    beside = _load_row(image_ptr, top, end, x, WIDTH, CHANNELS)
    below = _load_row(image_ptr, top + 1, end, x, WIDTH, CHANNELS)
    going, other_going = _add_row(bias, bias, above, upper)
    going, other_going = _add_row(going, other_going, beside, middle)
    begun, other_begun = _add_row(bias, bias, beside, upper)
    for step in range(ROWS):
        y = top + step
        total, other_total = _add_row(going, other_going, below, lower)
        going, other_going = _add_row(begun, other_begun, below, middle)
        begun, other_begun = _add_row(bias, bias, below, upper)
        # Prefetched: the load takes as long as the norms, and reuses the finished sums' registers.
        below = _load_row(image_ptr, y + 2, end, x, WIDTH, CHANNELS)
        row_ptr = out_ptr + y * (WIDTH * CHANNELS)
        is_row = y < HEIGHT
        value = _normalise(total, eps, CHANNELS).to(out_ptr.dtype.element_ty)
        tl.store(row_ptr, value, mask=is_row & (x < WIDTH))
        value = _normalise(other_total, eps, CHANNELS).to(out_ptr.dtype.element_ty)
        tl.store(row_ptr + CHANNELS, value, mask=is_row & (x < WIDTH - 1))


@triton.jit
def _load_row(image_ptr, y, end, x, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """A pair of pixels with its left and right neighbour; zeros outside the image, and from row `end` on."""
    is_row = (y >= 0) & (y < end)
    pixel_ptr = image_ptr + y * (WIDTH * CHANNELS)
    left = tl.load(pixel_ptr - CHANNELS, mask=is_row & (x > 0) & (x < WIDTH), other=0.0)
    first = tl.load(pixel_ptr, mask=is_row & (x < WIDTH), other=0.0)
    second = tl.load(pixel_ptr + CHANNELS, mask=is_row & (x < WIDTH - 1), other=0.0)
    right = tl.load(pixel_ptr + 2 * CHANNELS, mask=is_row & (x < WIDTH - 2), other=0.0)
    return left, first, second, right


@triton.jit
def _load_weights(weight_ptr, CHANNELS: tl.constexpr):
    """Weights of a row of the 3 × 3 kernel."""
    return tl.load(weight_ptr), tl.load(weight_ptr + CHANNELS), tl.load(weight_ptr + 2 * CHANNELS)


@triton.jit
def _add_row(total, other_total, row, weights):
    """Add a row of pixels times a row of weights to the sums of a pair."""
    left, first, second, right = row
    of_left, of_centre, of_right = weights
    first, second = first.to(tl.float32), second.to(tl.float32)
    left, right = left.to(tl.float32), right.to(tl.float32)
    total = total + left * of_left + first * of_centre + second * of_right
    other_total = other_total + first * of_left + second * of_centre + right * of_right
    return total, other_total


@triton.jit
def _normalise(value, eps, CHANNELS: tl.constexpr):
    value -= (tl.sum(value, axis=1) / CHANNELS)[:, None]
    return value * tl.math.rsqrt(tl.sum(value * value, axis=1) / CHANNELS + eps)[:, None]
