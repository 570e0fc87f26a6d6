"""The device code of preprocess; see `preprocess/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from maskjet.ops import frame_table
from maskjet.ops.triton_language import blend, scale_of, taps

ROW, CHROMA = tl.constexpr(frame_table.ROW), tl.constexpr(frame_table.CHROMA)
HEIGHT, WIDTH = tl.constexpr(frame_table.HEIGHT), tl.constexpr(frame_table.WIDTH)
STRIDES, CHROMA_STRIDES = tl.constexpr(frame_table.STRIDES), tl.constexpr(frame_table.CHROMA_STRIDES)
CONVERSION, REGION = tl.constexpr(frame_table.CONVERSION), tl.constexpr(frame_table.REGION)


@triton.jit(do_not_specialize=range(22))
def preprocess_kernel(
    frames_ptr,
    rows_ptr,
    out_ptr,
    source_height,
    source_width,
    height,
    width,
    top,
    left,
    inner_height,
    inner_width,
    stride_n,
    stride_y,
    stride_x,
    stride_c,
    out_stride_n,
    out_stride_c,
    out_stride_y,
    out_stride_x,
    mean,
    std,
    padding,
    HAS_ROWS: tl.constexpr,
    IS_CV2: tl.constexpr,
    TILE_HEIGHT: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
):
    """Compute one tile of a network input, all three channels; grid (tiles across, tiles down, N).

    frames: uint8 [N, source_height, source_width, 3]. mean, std, padding: three floats each. The frame fills the
    rectangle (top, left, inner_height, inner_width), `padding` (0..1) the rest.

    rows: int32 [N, ROW], of a `FrameTable`. With HAS_ROWS each frame's address, size, strides and rectangle are read
    there, and frames and the arguments for them are not.

    out: floats [N, 3, height, width], any strides.
    """
    image = tl.program_id(2).to(tl.int64)
    if HAS_ROWS:
        row_ptr = rows_ptr + image * ROW
        frame_ptr = _address(row_ptr)
        source_height, source_width, top, left, inner_height, inner_width = _sizes(row_ptr)
        stride_y, stride_x, stride_c = _three(row_ptr + STRIDES)
    else:
        frame_ptr = frames_ptr + image * stride_n
    y = (tl.program_id(1) * TILE_HEIGHT + tl.arange(0, TILE_HEIGHT))[:, None]
    x = (tl.program_id(0) * TILE_WIDTH + tl.arange(0, TILE_WIDTH))[None, :]
    is_row_inside = (y >= top) & (y < top + inner_height)
    is_inside = is_row_inside & (x >= left) & (x < left + inner_width)
    upper, lower, above, below = _source_taps(y - top, source_height, inner_height, IS_CV2, False)
    first, second, before, after = _source_taps(x - left, source_width, inner_width, IS_CV2, True)
    upper_ptr = frame_ptr + upper.to(tl.int64) * stride_y
    lower_ptr = frame_ptr + lower.to(tl.int64) * stride_y
    first, second = first * stride_x, second * stride_x
    pixel_ptr = out_ptr + image * out_stride_n + y.to(tl.int64) * out_stride_y + x * out_stride_x
    for channel in tl.static_range(3):
        upper_first = tl.load(upper_ptr + first + channel * stride_c, mask=is_inside, other=0)
        upper_second = tl.load(upper_ptr + second + channel * stride_c, mask=is_inside, other=0)
        lower_first = tl.load(lower_ptr + first + channel * stride_c, mask=is_inside, other=0)
        lower_second = tl.load(lower_ptr + second + channel * stride_c, mask=is_inside, other=0)
        value = _resize(upper_first, upper_second, lower_first, lower_second, above, below, before, after, IS_CV2)
        value = tl.where(is_inside, value, padding[channel])
        value = tl.div_rn(value - mean[channel], tl.full(value.shape, 1.0, tl.float32) * std[channel])
        tl.store(pixel_ptr + channel * out_stride_c, value, mask=(y < height) & (x < width))


@triton.jit(do_not_specialize=range(28))
def preprocess_yuv_kernel(
    luma_ptr,
    chroma_ptr,
    conversion_ptr,
    rows_ptr,
    out_ptr,
    source_height,
    source_width,
    height,
    width,
    top,
    left,
    inner_height,
    inner_width,
    stride_n,
    stride_y,
    stride_x,
    chroma_stride_n,
    chroma_stride_y,
    chroma_stride_x,
    chroma_stride_c,
    conversion_stride,
    out_stride_n,
    out_stride_c,
    out_stride_y,
    out_stride_x,
    mean,
    std,
    padding,
    HAS_ROWS: tl.constexpr,
    IS_CV2: tl.constexpr,
    TILE_HEIGHT: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
):
    """`preprocess_kernel` for frames in YUV 4:2:0; see `yuv.YUVFrames`.

    luma: uint8 [N, source_height, source_width]. chroma: uint8 [N, ceil(source_height / 2), ceil(source_width / 2), 2].
    conversion: int32 [N, 4, 2], each frame's numbers contiguous. With HAS_ROWS all three are found by rows.
    """
    image = tl.program_id(2).to(tl.int64)
    if HAS_ROWS:
        row_ptr = rows_ptr + image * ROW
        frame_ptr, frame_chroma_ptr, numbers_ptr = _address(row_ptr), _address(row_ptr + CHROMA), row_ptr + CONVERSION
        source_height, source_width, top, left, inner_height, inner_width = _sizes(row_ptr)
        stride_y, stride_x, _ = _three(row_ptr + STRIDES)
        chroma_stride_y, chroma_stride_x, chroma_stride_c = _three(row_ptr + CHROMA_STRIDES)
    else:
        frame_ptr, frame_chroma_ptr = luma_ptr + image * stride_n, chroma_ptr + image * chroma_stride_n
        numbers_ptr = conversion_ptr + image * conversion_stride
    y = (tl.program_id(1) * TILE_HEIGHT + tl.arange(0, TILE_HEIGHT))[:, None]
    x = (tl.program_id(0) * TILE_WIDTH + tl.arange(0, TILE_WIDTH))[None, :]
    is_row_inside = (y >= top) & (y < top + inner_height)
    is_inside = is_row_inside & (x >= left) & (x < left + inner_width)
    upper, lower, above, below = _source_taps(y - top, source_height, inner_height, IS_CV2, False)
    first, second, before, after = _source_taps(x - left, source_width, inner_width, IS_CV2, True)
    upper_ptr = frame_ptr + upper.to(tl.int64) * stride_y
    lower_ptr = frame_ptr + lower.to(tl.int64) * stride_y
    offset, scale = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
    upper_first = _load_luma(upper_ptr + first * stride_x, offset, scale, is_inside)
    upper_second = _load_luma(upper_ptr + second * stride_x, offset, scale, is_inside)
    lower_first = _load_luma(lower_ptr + first * stride_x, offset, scale, is_inside)
    lower_second = _load_luma(lower_ptr + second * stride_x, offset, scale, is_inside)
    upper_ptr = frame_chroma_ptr + (upper >> 1).to(tl.int64) * chroma_stride_y
    lower_ptr = frame_chroma_ptr + (lower >> 1).to(tl.int64) * chroma_stride_y
    first, second = (first >> 1) * chroma_stride_x, (second >> 1) * chroma_stride_x
    upper_first_u, upper_first_v = _load_chroma(upper_ptr + first, chroma_stride_c, is_inside)
    upper_second_u, upper_second_v = _load_chroma(upper_ptr + second, chroma_stride_c, is_inside)
    lower_first_u, lower_first_v = _load_chroma(lower_ptr + first, chroma_stride_c, is_inside)
    lower_second_u, lower_second_v = _load_chroma(lower_ptr + second, chroma_stride_c, is_inside)
    pixel_ptr = out_ptr + image * out_stride_n + y.to(tl.int64) * out_stride_y + x * out_stride_x
    for channel in tl.static_range(3):
        u, v = tl.load(numbers_ptr + 2 + 2 * channel), tl.load(numbers_ptr + 3 + 2 * channel)
        value = _resize(
            _to_byte(upper_first, upper_first_u, upper_first_v, u, v),
            _to_byte(upper_second, upper_second_u, upper_second_v, u, v),
            _to_byte(lower_first, lower_first_u, lower_first_v, u, v),
            _to_byte(lower_second, lower_second_u, lower_second_v, u, v),
            above,
            below,
            before,
            after,
            IS_CV2,
        )
        value = tl.where(is_inside, value, padding[channel])
        value = tl.div_rn(value - mean[channel], tl.full(value.shape, 1.0, tl.float32) * std[channel])
        tl.store(pixel_ptr + channel * out_stride_c, value, mask=(y < height) & (x < width))


@triton.jit(do_not_specialize=range(28))
def preprocess_antialias_kernel(
    frames_ptr,
    chroma_ptr,
    conversion_ptr,
    rows_ptr,
    out_ptr,
    source_height,
    source_width,
    height,
    width,
    top,
    left,
    inner_height,
    inner_width,
    stride_n,
    stride_y,
    stride_x,
    chroma_stride_n,
    chroma_stride_y,
    chroma_stride_x,
    stride_c,
    conversion_stride,
    out_stride_n,
    out_stride_c,
    out_stride_y,
    out_stride_x,
    mean,
    std,
    padding,
    HAS_ROWS: tl.constexpr,
    IS_YUV: tl.constexpr,
    TILE_HEIGHT: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
):
    """`preprocess_yuv_kernel`, or with RGB frames `preprocess_kernel`, but averaging all pixels under a triangle.

    The triangle is two output pixels wide and high, and at least two source pixels. `stride_c` is from red to green, or
    from U to V; RGB frames have no chroma. The weights are those of ATen's `upsample_bilinear2d_aa`.
    """
    image = tl.program_id(2).to(tl.int64)
    if HAS_ROWS:
        row_ptr = rows_ptr + image * ROW
        frame_ptr, frame_chroma_ptr, numbers_ptr = _address(row_ptr), _address(row_ptr + CHROMA), row_ptr + CONVERSION
        source_height, source_width, top, left, inner_height, inner_width = _sizes(row_ptr)
        stride_y, stride_x, stride_c = _three(row_ptr + STRIDES)
        if IS_YUV:
            chroma_stride_y, chroma_stride_x, stride_c = _three(row_ptr + CHROMA_STRIDES)
    else:
        frame_ptr, frame_chroma_ptr = frames_ptr + image * stride_n, chroma_ptr + image * chroma_stride_n
        numbers_ptr = conversion_ptr + image * conversion_stride
    y = (tl.program_id(1) * TILE_HEIGHT + tl.arange(0, TILE_HEIGHT))[:, None]
    x = (tl.program_id(0) * TILE_WIDTH + tl.arange(0, TILE_WIDTH))[None, :]
    is_row_inside = (y >= top) & (y < top + inner_height)
    is_inside = is_row_inside & (x >= left) & (x < left + inner_width)
    upper, rows, centre_y, half_y = _triangle(y - top, source_height, inner_height)
    first, columns, centre_x, half_x = _triangle(x - left, source_width, inner_width)
    red = tl.zeros([TILE_HEIGHT, TILE_WIDTH], tl.float32)
    green = red
    blue = red
    weights_y = tl.zeros([TILE_HEIGHT, 1], tl.float32)
    weights_x = tl.zeros([1, TILE_WIDTH], tl.float32)
    for i in range((2.0 * half_y).to(tl.int32) + 2):
        row = upper + i
        weight_y = _weight(row, rows, centre_y, half_y)
        line_ptr = frame_ptr + row.to(tl.int64) * stride_y
        chroma_line_ptr = frame_chroma_ptr + (row >> 1).to(tl.int64) * chroma_stride_y
        reds = tl.zeros([TILE_HEIGHT, TILE_WIDTH], tl.float32)
        greens = reds
        blues = reds
        weights_x = tl.zeros([1, TILE_WIDTH], tl.float32)
        for k in range((2.0 * half_x).to(tl.int32) + 2):
            column = first + k
            weight_x = _weight(column, columns, centre_x, half_x)
            weights_x += weight_x
            is_read = is_inside & (row < rows) & (column < columns)
            if IS_YUV:
                offset, scale = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
                luma = _load_luma(line_ptr + column * stride_x, offset, scale, is_read)
                u, v = _load_chroma(chroma_line_ptr + (column >> 1) * chroma_stride_x, stride_c, is_read)
                r = _to_byte(luma, u, v, tl.load(numbers_ptr + 2), tl.load(numbers_ptr + 3))
                g = _to_byte(luma, u, v, tl.load(numbers_ptr + 4), tl.load(numbers_ptr + 5))
                b = _to_byte(luma, u, v, tl.load(numbers_ptr + 6), tl.load(numbers_ptr + 7))
            else:
                source_ptr = line_ptr + column * stride_x
                r = tl.load(source_ptr, mask=is_read, other=0)
                g = tl.load(source_ptr + stride_c, mask=is_read, other=0)
                b = tl.load(source_ptr + 2 * stride_c, mask=is_read, other=0)
            reds += weight_x * r.to(tl.float32)
            greens += weight_x * g.to(tl.float32)
            blues += weight_x * b.to(tl.float32)
        red += weight_y * reds
        green += weight_y * greens
        blue += weight_y * blues
        weights_y += weight_y
    whole = weights_y * weights_x * 255.0
    averages = (red, green, blue)
    pixel_ptr = out_ptr + image * out_stride_n + y.to(tl.int64) * out_stride_y + x * out_stride_x
    for channel in tl.static_range(3):
        value = tl.where(is_inside, tl.div_rn(averages[channel], whole), padding[channel])
        value = tl.div_rn(value - mean[channel], tl.full(value.shape, 1.0, tl.float32) * std[channel])
        tl.store(pixel_ptr + channel * out_stride_c, value, mask=(y < height) & (x < width))


@triton.jit
def _triangle(index, source, target):
    """First and exclusive last source index under an output index's triangle, its centre, and half its width."""
    scale = scale_of(source, target)
    half = tl.maximum(scale, 1.0)
    centre = scale * (index.to(tl.float32) + 0.5)
    first = tl.maximum((centre - half + 0.5).to(tl.int32), 0)
    return first, tl.minimum((centre + half + 0.5).to(tl.int32), source), centre, half


@triton.jit
def _weight(index, end, centre, half):
    """Height of a triangle at a source index; 0 from its end on."""
    distance = tl.abs(index.to(tl.float32) - centre + 0.5) / half
    return tl.where(index < end, tl.maximum(1.0 - distance, 0.0), 0.0)


@triton.jit
def _address(word_ptr):
    """Load the address held by two words of a table row, as a pointer to uint8."""
    address = tl.load(word_ptr.to(tl.pointer_type(tl.int64), bitcast=True))
    return address.to(tl.pointer_type(tl.uint8))


@triton.jit
def _sizes(row_ptr):
    """A frame's height and width, and the rectangle of the input that it fills."""
    region_ptr = row_ptr + REGION
    top, left, height = _three(region_ptr)
    return tl.load(row_ptr + HEIGHT), tl.load(row_ptr + WIDTH), top, left, height, tl.load(region_ptr + 3)


@triton.jit
def _three(word_ptr):
    return tl.load(word_ptr), tl.load(word_ptr + 1), tl.load(word_ptr + 2)


@triton.jit
def _load_luma(sample_ptr, offset, scale, is_inside):
    """Load luma, scaled to the range of RGB, 0..255."""
    return ((tl.load(sample_ptr, mask=is_inside, other=0).to(tl.int32) * 8 - offset) * scale) >> 16


@triton.jit
def _load_chroma(sample_ptr, stride_c, is_inside):
    """Load U and V, as eight times their differences from grey."""
    u = tl.load(sample_ptr, mask=is_inside, other=0).to(tl.int32)
    v = tl.load(sample_ptr + stride_c, mask=is_inside, other=0).to(tl.int32)
    return u * 8 - 1024, v * 8 - 1024


@triton.jit
def _to_byte(luma, u, v, u_share, v_share):
    """A channel of RGB, 0..255; each product is rounded down."""
    return tl.minimum(tl.maximum(luma + ((u * u_share) >> 16) + ((v * v_share) >> 16), 0), 255)


@triton.jit
def _source_taps(index, source, target, IS_CV2: tl.constexpr, IS_COLUMN: tl.constexpr):
    """The two source indices of an output index, and their weights: 0..1, or 0..2048 as in OpenCV."""
    if IS_CV2:
        first, second, first_share, second_share = _fixed_point_taps(index, source, target, IS_COLUMN)
    else:
        first, second, second_share = taps(index, scale_of(source, target), source)
        first_share = 1.0 - second_share
    return first, second, first_share, second_share


@triton.jit
def _resize(upper_first, upper_second, lower_first, lower_second, above, below, before, after, IS_CV2: tl.constexpr):
    """Blend four bytes bilinearly to the 0..1 scale; `above` and `below` weight the rows."""
    if IS_CV2:
        upper = upper_first.to(tl.int32) * before + upper_second.to(tl.int32) * after
        lower = lower_first.to(tl.int32) * before + lower_second.to(tl.int32) * after
        quarters = ((above * (upper >> 4)) >> 16) + ((below * (lower >> 4)) >> 16)
        value = _unit((quarters + 2) >> 2)
    else:
        upper = blend(_unit(upper_first), _unit(upper_second), after)
        lower = blend(_unit(lower_first), _unit(lower_second), after)
        value = blend(upper, lower, below)
    return value


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
