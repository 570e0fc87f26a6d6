"""The device code of nms; see `nms/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=range(7))
def find_overlaps_kernel(
    boxes_ptr,
    groups_ptr,
    count_ptr,
    overlaps_ptr,
    most,
    words,
    threshold,
    ROWS: tl.constexpr,
    BITS: tl.constexpr,
):
    """Find which of ROWS boxes of an image overlap which of BITS boxes; grid (words, blocks of ROWS boxes, B).

    boxes: float32 [B, most, 4] xyxy. groups: int32 [B, most]. count: int32 [B]. All contiguous.

    overlaps: int32 [B, most, words]; bit b of a box's word w is set if box w × BITS + b comes later, is of its group
    and overlaps it. Words without a later box are not written.
    """
    image = tl.program_id(2).to(tl.int64)
    word = tl.program_id(0)
    start = tl.program_id(1) * ROWS
    found = tl.minimum(tl.load(count_ptr + image), most)
    if (start < found) & (word * BITS < found) & ((word + 1) * BITS > start):  # others are never read
        row = start + tl.arange(0, ROWS)
        column = word * BITS + tl.arange(0, BITS)
        boxes_ptr += image * most * 4
        groups_ptr += image * most
        left, top, right, bottom, group = _load(boxes_ptr, groups_ptr, row, found)
        others = _load(boxes_ptr, groups_ptr, column, found)
        width = tl.minimum(right[:, None], others[2][None, :]) - tl.maximum(left[:, None], others[0][None, :])
        height = tl.minimum(bottom[:, None], others[3][None, :]) - tl.maximum(top[:, None], others[1][None, :])
        shared = tl.maximum(width, 0.0) * tl.maximum(height, 0.0)
        area = (right - left) * (bottom - top)
        other_area = (others[2] - others[0]) * (others[3] - others[1])
        iou = tl.div_rn(shared, area[:, None] + other_area[None, :] - shared)
        is_over = (iou > threshold) & (group[:, None] == others[4][None, :])
        is_over &= (column[None, :] > row[:, None]) & (column[None, :] < found)
        bits = tl.sum(is_over.to(tl.int32) << tl.arange(0, BITS)[None, :], axis=1)
        tl.store(overlaps_ptr + (image * most + row) * words + word, bits, mask=row < found)


@triton.jit
def _load(boxes_ptr, groups_ptr, row, found):
    """Left, top, right, bottom and group of some boxes."""
    is_row = row < found
    left = tl.load(boxes_ptr + 4 * row, mask=is_row, other=0.0)
    top = tl.load(boxes_ptr + 4 * row + 1, mask=is_row, other=0.0)
    right = tl.load(boxes_ptr + 4 * row + 2, mask=is_row, other=0.0)
    bottom = tl.load(boxes_ptr + 4 * row + 3, mask=is_row, other=0.0)
    return left, top, right, bottom, tl.load(groups_ptr + row, mask=is_row, other=0)


@triton.jit(do_not_specialize=range(8))
def choose_kernel(
    overlaps_ptr,
    count_ptr,
    removed_ptr,
    kept_count_ptr,
    index_ptr,
    most,
    words,
    max_output,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Choose the boxes of one image that stay; grid (B).

    overlaps: as `find_overlaps_kernel` writes them. count: int32 [B]. removed: int32 [B, words], scratch.

    kept_count: int32 [B]. index: int32 [B, max_output], ascending; undefined past the image's count.
    """
    image = tl.program_id(0).to(tl.int64)
    found = tl.minimum(tl.load(count_ptr + image), most)
    overlaps_ptr += image * most * words
    removed_ptr += image * words
    index_ptr += image * max_output
    for start in range(0, words, WORDS):
        word = start + tl.arange(0, WORDS)
        tl.store(removed_ptr + word, tl.zeros([WORDS], tl.int32), mask=word < words)
    tl.debug_barrier()
    lane = tl.arange(0, BITS)
    kept = 0
    block = 0
    while (block * BITS < found) & (kept < max_output):
        row = block * BITS + lane
        gone = tl.load(removed_ptr + block)
        own = tl.load(overlaps_ptr + row.to(tl.int64) * words + block, mask=row < found, other=0)
        stays = 0
        for bit in range(BITS):
            is_kept = ((gone >> bit) & 1) == 0
            stays |= is_kept.to(tl.int32) << bit
            gone |= tl.where(is_kept, tl.sum(tl.where(lane == bit, own, 0)), 0)
        is_kept = (((stays >> lane) & 1) == 1) & (row < found)
        slot = kept + tl.cumsum(is_kept.to(tl.int32)) - 1
        tl.store(index_ptr + slot, row, mask=is_kept & (slot < max_output))
        kept += tl.sum(is_kept.to(tl.int32))
        for start in range((block + 1) // WORDS * WORDS, words, WORDS):
            word = start + tl.arange(0, WORDS)
            is_later = (word > block) & (word * BITS < found)
            rows_ptr = overlaps_ptr + row.to(tl.int64)[:, None] * words + word[None, :]
            bits = tl.load(rows_ptr, mask=is_kept[:, None] & is_later[None, :], other=0)
            before = tl.load(removed_ptr + word, mask=is_later, other=0)
            tl.store(removed_ptr + word, before | tl.reduce(bits, 0, _either), mask=is_later)
        tl.debug_barrier()
        block += 1
    tl.store(kept_count_ptr + image, tl.minimum(kept, max_output))


@triton.jit
def _either(bits, others):
    """Bitwise or, for `tl.reduce`."""
    return bits | others
