"""The device code of paste_masks; see `paste_masks/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from maskjet.ops.triton_language import blend, finite, place, taps


@triton.jit(do_not_specialize=[*range(3), *range(4, 19)])
def paste_kernel(
    masks_ptr,
    count_ptr,
    query_ptr,
    out_ptr,
    is_inside_ptr,
    queries,
    mask_height,
    mask_width,
    height,
    width,
    stride_query,
    stride_y,
    stride_x,
    left_whole,
    left_fraction,
    top_whole,
    top_fraction,
    across_scale,
    down_scale,
    TILE_HEIGHT: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    LOGITS_HEIGHT: tl.constexpr,
    LOGITS_WIDTH: tl.constexpr,
):
    """Upsample and threshold one tile of one mask of an image; grid (tiles, n).

    masks: floats [queries, mask_height, mask_width], any strides. count: int32 [1]. query: int32 [n].
    left, top: where the canvas that the masks cover begins, as in `Canvas.split`. across_scale, down_scale: logits per
    pixel of it.

    out: uint8 [n, height, width], contiguous. is_inside: uint8 [n]; set to 1 if a pixel is inside, else left alone.
    """
    slot = tl.program_id(1)
    if slot >= tl.load(count_ptr):
        return
    tiles_across = tl.cdiv(width, TILE_WIDTH)
    top = (tl.program_id(0) // tiles_across) * TILE_HEIGHT
    left = (tl.program_id(0) % tiles_across) * TILE_WIDTH
    y = (top + tl.arange(0, TILE_HEIGHT))[:, None]
    x = (left + tl.arange(0, TILE_WIDTH))[None, :]
    is_pixel = (y < height) & (x < width)
    line = slot.to(tl.int64) * height + y
    query = tl.load(query_ptr + slot)
    mask_ptr = masks_ptr + query.to(tl.int64) * stride_query

    first_row, _, _ = taps(place(top, top_whole, top_fraction), down_scale, mask_height)
    first_column, _, _ = taps(place(left, left_whole, left_fraction), across_scale, mask_width)
    last_y = place(tl.minimum(top + TILE_HEIGHT, height) - 1, top_whole, top_fraction)
    last_x = place(tl.minimum(left + TILE_WIDTH, width) - 1, left_whole, left_fraction)
    _, last_row, _ = taps(last_y, down_scale, mask_height)
    _, last_column, _ = taps(last_x, across_scale, mask_width)
    row = (first_row + tl.arange(0, LOGITS_HEIGHT))[:, None]
    column = (first_column + tl.arange(0, LOGITS_WIDTH))[None, :]
    is_valid = (query >= 0) & (query < queries)
    is_small = (last_row - first_row < LOGITS_HEIGHT) & (last_column - first_column < LOGITS_WIDTH)
    is_read = (row <= last_row) & (column < tl.where(is_small & is_valid, last_column + 1, 0))
    logits = tl.load(mask_ptr + (row * stride_y + column * stride_x), mask=is_read, other=0).to(tl.float32)
    has_inside = tl.max((logits > 0).to(tl.int32)) > 0
    has_outside = tl.max((is_read & ((logits > 0) == 0)).to(tl.int32)) > 0
    if (not is_valid) | (is_small & (has_inside != has_outside)):
        fill = tl.zeros([TILE_HEIGHT, TILE_WIDTH], tl.uint8) + (has_inside & is_valid).to(tl.uint8)
        _store(out_ptr, line, x, fill, y < height, width)
        if has_inside & is_valid:
            tl.store(is_inside_ptr + slot, 1)
        return
    upper, lower, down = taps(place(y, top_whole, top_fraction), down_scale, mask_height)
    before, after, across = taps(place(x, left_whole, left_fraction), across_scale, mask_width)
    upper_before = tl.load(mask_ptr + (upper * stride_y + before * stride_x), mask=is_pixel, other=0).to(tl.float32)
    upper_after = tl.load(mask_ptr + (upper * stride_y + after * stride_x), mask=is_pixel, other=0).to(tl.float32)
    lower_before = tl.load(mask_ptr + (lower * stride_y + before * stride_x), mask=is_pixel, other=0).to(tl.float32)
    lower_after = tl.load(mask_ptr + (lower * stride_y + after * stride_x), mask=is_pixel, other=0).to(tl.float32)
    above = blend(finite(upper_before), finite(upper_after), across)
    below = blend(finite(lower_before), finite(lower_after), across)
    value = blend(above, below, down)
    is_inside = (value > 0).to(tl.uint8)
    _store(out_ptr, line, x, is_inside, y < height, width)
    if tl.max(is_inside.to(tl.int32)) > 0:
        tl.store(is_inside_ptr + slot, 1)


@triton.jit
def _store(out_ptr, line, x, value, is_line, width):
    """Write a tile of a mask, 16 bytes at a time if the width is a multiple of 16."""
    if width % 16 == 0:
        pixel = tl.max_contiguous(tl.multiple_of(line * width + x, (1, 16)), (1, 16))
        tl.store(out_ptr + pixel, value, mask=is_line & (x < width // 16 * 16))
    else:
        tl.store(out_ptr + line * width + x, value, mask=is_line & (x < width))
