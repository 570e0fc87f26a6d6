"""The device code of preprocess; see `preprocess/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from maskjet.ops.triton_language import blend, scale_of, taps


@triton.jit(do_not_specialize=range(16))
def preprocess_kernel(
    frames_ptr,
    out_ptr,
    source_height,
    source_width,
    height,
    width,
    top,
    left,
    inner_height,
    inner_width,
    frame_stride,
    row_stride,
    out_stride_n,
    out_stride_c,
    out_stride_y,
    out_stride_x,
    mean,
    std,
    padding,
    IS_BGR: tl.constexpr,
    IS_CV2: tl.constexpr,
    TILE_HEIGHT: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
):
    """Compute one tile of a network input, all three channels; grid (tiles across, tiles down, N).

    frames: uint8 [N, source_height, source_width, 3], pixels contiguous. mean, std: three floats each. The frame fills
    the rectangle (top, left, inner_height, inner_width), `padding` (0..1) the rest.

    out: floats [N, 3, height, width], any strides.
    """
    y = (tl.program_id(1) * TILE_HEIGHT + tl.arange(0, TILE_HEIGHT))[:, None]
    x = (tl.program_id(0) * TILE_WIDTH + tl.arange(0, TILE_WIDTH))[None, :]
    image = tl.program_id(2).to(tl.int64)
    is_row_inside = (y >= top) & (y < top + inner_height)
    is_inside = is_row_inside & (x >= left) & (x < left + inner_width)
    if IS_CV2:
        upper, lower, upper_share, lower_share = _fixed_point_taps(y - top, source_height, inner_height, False)
        before, after, before_share, after_share = _fixed_point_taps(x - left, source_width, inner_width, True)
    else:
        upper, lower, lower_share = taps(y - top, scale_of(source_height, inner_height), source_height)
        before, after, after_share = taps(x - left, scale_of(source_width, inner_width), source_width)
    frame_ptr = frames_ptr + image * frame_stride
    upper_ptr = frame_ptr + upper.to(tl.int64) * row_stride
    lower_ptr = frame_ptr + lower.to(tl.int64) * row_stride
    pixel_ptr = out_ptr + image * out_stride_n + y.to(tl.int64) * out_stride_y + x * out_stride_x
    for channel in tl.static_range(3):
        source_channel = 2 - channel if IS_BGR else channel
        upper_before = tl.load(upper_ptr + before * 3 + source_channel, mask=is_inside, other=0)
        upper_after = tl.load(upper_ptr + after * 3 + source_channel, mask=is_inside, other=0)
        lower_before = tl.load(lower_ptr + before * 3 + source_channel, mask=is_inside, other=0)
        lower_after = tl.load(lower_ptr + after * 3 + source_channel, mask=is_inside, other=0)
        if IS_CV2:
            above = upper_before.to(tl.int32) * before_share + upper_after.to(tl.int32) * after_share
            below = lower_before.to(tl.int32) * before_share + lower_after.to(tl.int32) * after_share
            quarters = ((upper_share * (above >> 4)) >> 16) + ((lower_share * (below >> 4)) >> 16)
            value = _unit((quarters + 2) >> 2)
        else:
            above = blend(_unit(upper_before), _unit(upper_after), after_share)
            below = blend(_unit(lower_before), _unit(lower_after), after_share)
            value = blend(above, below, lower_share)
        value = tl.where(is_inside, value, padding)
        value = tl.div_rn(value - mean[channel], tl.full(value.shape, 1.0, tl.float32) * std[channel])
        tl.store(pixel_ptr + channel * out_stride_c, value, mask=(y < height) & (x < width))


@triton.jit
def _unit(byte):
    """A byte on the 0..1 scale."""
    return tl.div_rn(byte.to(tl.float32), tl.full(byte.shape, 255.0, tl.float32))


@triton.jit
def _fixed_point_taps(index, source, target, IS_COLUMN: tl.constexpr):
    """The two source indices of `cv2.resize(INTER_LINEAR)` on bytes, and their shares in 1/2048.

    Positions are float64, fractions float32, and shares rounded half to even. Beyond the first and last source value
    both indices are that value. Along x OpenCV then gives it the whole share; along y it keeps two shares and rounds
    their products down one by one.
    """
    scale = 1.0 / (target.to(tl.float64) / source.to(tl.float64))
    where = ((index.to(tl.float64) + 0.5) * scale - 0.5).to(tl.float32)
    whole = tl.floor(where)
    share = where - whole
    first = whole.to(tl.int32)
    if IS_COLUMN:
        share = tl.where((first < 0) | (first >= source - 1), 0.0, share)
    second = tl.minimum(tl.maximum(first + 1, 0), source - 1)
    first = tl.minimum(tl.maximum(first, 0), source - 1)
    if IS_COLUMN:
        second = tl.where(share == 0.0, first, second)
    return first, second, _round((1.0 - share) * 2048.0), _round(share * 2048.0)


@triton.jit
def _round(value):
    """Round float32 in 0..2**22 to the nearest integer, halves to even."""
    return ((value + 12582912.0) - 12582912.0).to(tl.int32)
