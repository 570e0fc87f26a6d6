"""The device code of roi_align; see `roi_align/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from maskjet.ops.roi_align.reference import CANONICAL_LEVEL, CANONICAL_SIDE, EPSILON
from maskjet.ops.triton_language import _IS_INTERPRETED

_SIDE = tl.constexpr(CANONICAL_SIDE)
_LEVEL = tl.constexpr(CANONICAL_LEVEL)
_EPSILON = tl.constexpr(EPSILON)


@triton.jit(do_not_specialize=range(6, 17))  # pointers stay specialised on alignment
def roi_align_kernel(
    level0_ptr,
    level1_ptr,
    level2_ptr,
    level3_ptr,
    boxes_ptr,
    out_ptr,
    height0,
    width0,
    height1,
    width1,
    height2,
    width2,
    height3,
    width3,
    boxes_per_image,
    finest,
    levels,
    SIZE: tl.constexpr,
    BINS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pool one row of bins of one box, BLOCK channels of it; grid (B × N, SIZE, blocks of channels).

    level0..3: floats [B, CHANNELS, height, width], channels-last, finest first; those past `levels` are not read.
    boxes: float32 [B, N, 4] xyxy, in pixels of the network's input.

    out: [B × N, CHANNELS, SIZE, SIZE] of the levels' dtype, channels-last.
    """
    box = tl.program_id(0).to(tl.int64)
    bin_row = tl.program_id(1)
    left = tl.load(boxes_ptr + 4 * box)
    top = tl.load(boxes_ptr + 4 * box + 1)
    right = tl.load(boxes_ptr + 4 * box + 2)
    bottom = tl.load(boxes_ptr + 4 * box + 3)
    level = _find_level(right - left, bottom - top, finest, levels)
    feature_ptr, height, width = level0_ptr, height0, width0
    if level == 1:
        feature_ptr, height, width = level1_ptr, height1, width1
    if level == 2:
        feature_ptr, height, width = level2_ptr, height2, width2
    if level == 3:
        feature_ptr, height, width = level3_ptr, height3, width3
    image = box // boxes_per_image
    feature_ptr += image * height * width * CHANNELS

    scale = tl.exp2(-(finest + level).to(tl.float32))
    left, top, right, bottom = left * scale, top * scale, right * scale, bottom * scale
    has_sides = (tl.abs(right - left) < float("inf")) & (tl.abs(bottom - top) < float("inf"))
    left = tl.where(has_sides, left, float("inf"))  # infinity lies outside the image
    bin_width = tl.div_rn(tl.maximum(right - left, 1.0), SIZE * 1.0)
    bin_height = tl.div_rn(tl.maximum(bottom - top, 1.0), SIZE * 1.0)
    bins = tl.arange(0, BINS)
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    is_channel = channel < CHANNELS
    total = tl.zeros([BINS, BLOCK], tl.float32)
    for sample in tl.static_range(4):
        y = tl.zeros([BINS], tl.float32) + (top + bin_row * bin_height + (0.25 + 0.5 * (sample // 2)) * bin_height)
        x = left + bins * bin_width + (0.25 + 0.5 * (sample % 2)) * bin_width
        upper, lower, down, is_row = _taps(y, height)
        before, after, across, is_column = _taps(x, width)
        is_near = (is_row & is_column & (bins < SIZE))[:, None] & is_channel[None, :]
        for corner in tl.static_range(4):
            row = upper if corner < 2 else lower
            column = before if corner % 2 == 0 else after
            share = (1.0 - down if corner < 2 else down) * (1.0 - across if corner % 2 == 0 else across)
            pixel = (row.to(tl.int64) * width + column) * CHANNELS
            value = tl.load(feature_ptr + pixel[:, None] + channel[None, :], mask=is_near, other=0.0)
            total += share[:, None] * value.to(tl.float32)
    slot = ((box * SIZE + bin_row) * SIZE + bins).to(tl.int64) * CHANNELS
    is_bin = (bins < SIZE)[:, None] & is_channel[None, :]
    tl.store(out_ptr + slot[:, None] + channel[None, :], (total / 4).to(out_ptr.dtype.element_ty), mask=is_bin)


@triton.jit
def _find_level(width, height, finest, levels):
    """The level that a box is pooled from; 0 is the finest."""
    side = tl.div_rn(tl.sqrt_rn(width * height), _SIDE)
    exponent = tl.log2(side) if _IS_INTERPRETED else libdevice.log2(side)
    level = tl.floor(exponent + _LEVEL + _EPSILON) - finest.to(tl.float32)
    level = tl.where(level == level, level, 0.0)  # for a NaN
    return tl.minimum(tl.maximum(level, 0.0), (levels - 1).to(tl.float32)).to(tl.int32)


@triton.jit
def _taps(at, extent):
    """The two pixels around a position, the weight of the second, and whether it is within a pixel of the image."""
    is_near = (at >= -1.0) & (at <= extent.to(tl.float32))
    inside = tl.maximum(tl.where(is_near, at, 0.0), 0.0)
    first = tl.minimum(inside.to(tl.int32), extent - 1)
    share = tl.where(first == extent - 1, 0.0, inside - first.to(tl.float32))
    return first, tl.minimum(first + 1, extent - 1), share, is_near
