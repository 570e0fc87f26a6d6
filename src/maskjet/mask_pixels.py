"""Stray pixels of masks: those outside the box, or in small parts; dropped from the runs, without a dense mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.coco_rle import BYTES_PER_COUNT, RLE, Counts, read_counts, write_string
from maskjet.errors import InputError
from maskjet.jit import compiled

MaskPixels = Literal["raw", "box", "largest"]
"""Pixels of a mask that are kept: all; those inside its box; or those of its large parts."""
# A third keeps 55 % of the pixels that instances cut in two have beside their largest part (400 drawn streets), and it
# drops 67 % of the demo model's stray ones (60 streets). A fifth: 75 and 40 %; a half: 20 and 89 %.
_LARGE = 3  # a part is large if it has at least one in so many pixels of the largest one
_BYTES = 54  # most memory that is taken per run length and column


def check_mask_pixels(value: Any) -> None:
    """Raise InputError if a value is no `MaskPixels`."""
    if not isinstance(value, str) or value not in get_args(MaskPixels):
        raise InputError(f"mask_pixels must be 'raw', 'box' or 'largest', got {value!r}.")


def keep_pixels(
    rles: Sequence[RLE], xyxy: NDArray[np.float32], size_hw: tuple[int, int], mask_pixels: MaskPixels
) -> list[dict[str, Any]]:
    """Keep pixels of n masks: "box" those in float32 [n, 4], boxes in pixels, or "largest"; see `Detections`.

    Raises:
        InputError: A mask is malformed, not of this (height, width), or needs more memory than `limits.masks_bytes`.
    """
    height, width = map(int, size_hw)
    corners = xyxy.astype(np.float64).reshape(-1, 2, 2)
    windows = np.hstack([np.floor(corners.min(axis=1)), np.ceil(corners.max(axis=1))])
    windows[np.isnan(windows).any(axis=1) | (mask_pixels != "box")] = 0, 0, width, height
    kept = []
    for rle, window in zip(rles, windows.clip(0, (width, height, width, height)).astype(np.int64), strict=True):
        counts, size = read_counts(rle)
        if size != (height, width):
            raise InputError(f"rle must have the size {[height, width]}, got {list(size)}.")
        limits.check("masks_bytes", _BYTES * (len(counts) + width), "keep_mask_pixels() needs")
        string = np.empty(BYTES_PER_COUNT * (len(counts) + 2 * width + 1), np.uint8)  # see `keep_runs`
        written = keep_runs(counts, window, height, width, mask_pixels == "largest", string)
        kept.append({"size": [height, width], "counts": string[:written].tobytes()})
    return kept


@compiled("int64(Array(int64, 1, 'C', True), int64, Array(int64, 1, 'C', True), int32[:, ::1])")
def cut(counts: Counts, height: int, window: NDArray[np.int64], pieces: NDArray[np.int32]) -> int:
    """Cut the inside runs at the columns' ends and at a window, left, top, right, bottom.

    Writes each piece's column, top and bottom into `pieces`, which has room for all of them; returns their number.
    """
    left, highest, right, lowest = window
    found, start, x = 0, 0, 0
    for i in range(len(counts)):
        end = start + counts[i]
        while i % 2 and start < end:
            while start >= (x + 1) * height:  # faster than to divide by it
                x += 1
            below = min(end, (x + 1) * height)
            top, bottom = max(start - x * height, highest), min(below - x * height, lowest)
            if left <= x < right and top < bottom:
                if found and pieces[found - 1, 0] == x and pieces[found - 1, 2] == top:  # a run of no zeros between
                    pieces[found - 1, 2] = bottom
                else:
                    pieces[found, 0], pieces[found, 1], pieces[found, 2] = x, top, bottom
                    found += 1
            start = below
        start = end
    return found


@compiled("int64(int32[::1], int64)")
def first_of(parents: NDArray[np.int32], piece: int) -> int:
    """The first piece of a piece's part, by the pieces' parents; shortens the way to it."""
    while parents[piece] != piece:
        parents[piece] = parents[parents[piece]]
        piece = parents[piece]
    return piece


@compiled("int64(int32[:, ::1])")
def drop_small_parts(pieces: NDArray[np.int32]) -> int:
    """Drop the pieces of small 8-connected parts, in place; returns the number of those that stay."""
    count = len(pieces)
    parents = np.arange(count).astype(np.int32)  # each leads to the first piece of its part
    before, own, near = 0, 0, 0  # first pieces of: the column before, this one, those not above this piece
    for k in range(count):
        x, top, bottom = pieces[k]
        if x != pieces[own, 0]:
            before, near, own = own, own, k
        if x != pieces[before, 0] + 1:
            continue
        while near < own and pieces[near, 2] < top:
            near += 1
        other = near
        while other < own and pieces[other, 1] <= bottom:
            one, two = first_of(parents, k), first_of(parents, other)
            parents[max(one, two)] = min(one, two)
            other += 1
    sizes = np.zeros(count + 1, np.int64)
    for k in range(count):
        parents[k] = parents[parents[k]]
        sizes[parents[k]] += pieces[k, 2] - pieces[k, 1]
    least, kept = sizes.max(), 0
    for k in range(count):
        if sizes[parents[k]] * _LARGE >= least:
            pieces[kept] = pieces[k]
            kept += 1
    return kept


@compiled("int64(Array(int64, 1, 'C', True), Array(int64, 1, 'C', True), int64, int64, boolean, uint8[::1])")
def keep_runs(
    counts: Counts, window: NDArray[np.int64], height: int, width: int, is_largest: bool, string: NDArray[np.uint8]
) -> int:
    """Write COCO's string of a mask's pixels in the window, or perhaps of their large parts; returns its length.

    There is a piece per run at most, and one per column more. So of n run lengths at most n + 2 * width + 1 are made.
    """
    most = len(counts) // 2 + width
    pieces, runs = np.empty((most, 3), np.int32), np.empty(2 * most + 1, np.int64)
    count = cut(counts, height, window, pieces)
    if is_largest:
        count = drop_small_parts(pieces[:count])
    found, end = 0, 0
    for k in range(count):
        start, length = pieces[k, 0] * height + pieces[k, 1], pieces[k, 2] - pieces[k, 1]
        if found and start == end:  # goes on from the bottom of one column at the top of the next
            runs[found - 1] += length
        else:
            runs[found], runs[found + 1] = start - end, length
            found += 2
        end = start + length
    if end < height * width or not found:
        runs[found] = height * width - end
        found += 1
    return write_string(runs[:found], string)
