"""Drop stray pixels of masks, outside the box or in small parts, on runs, without dense masks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.jit import Ints, compiled
from maskjet.masks import MaskPixels
from maskjet.masks.coco_rle import BYTES_PER_COUNT, RLE, Runs, to_runs, write_string

# One third keeps 55 % of the pixels in smaller parts of occluded instances (400 drawn streets), and drops 67 % of the
# demo model's stray pixels (60 streets). One fifth: 75 and 40 %; one half: 20 and 89 %.
_LARGE = 3  # a part is large with at least 1/3 of the largest part's pixels
_BYTES = 54  # most bytes of memory per piece
Spans = NDArray[np.int64]


def keep_pixels(
    rles: Sequence[RLE], xyxy: NDArray[np.float32], size_hw: tuple[int, int], mask_pixels: MaskPixels
) -> list[dict[str, Any]]:
    """Drop stray pixels of n RLEs of one (height, width); see `keep_in_runs`."""
    return write_masks(keep_in_runs(to_runs(rles, size_hw), xyxy, mask_pixels))


def write_masks(runs: Runs) -> list[dict[str, Any]]:
    """Encode runs, no two of which touch, as RLEs."""
    height, width = map(int, runs.size_hw)
    strings = []
    for first, end in pairwise(runs.firsts.tolist()):
        string = np.empty(BYTES_PER_COUNT * (2 * (end - first) + 1), np.uint8)
        strings.append(string[: write_runs(runs.spans[first:end], height * width, string)].tobytes())
    return [{"size": [height, width], "counts": string} for string in strings]


def keep_in_runs(runs: Runs, xyxy: NDArray[np.float32], mask_pixels: MaskPixels) -> Runs:
    """Drop stray pixels of n masks: "box" keeps those inside `xyxy`, float32 [n, 4] in pixels; see `MaskPixels`.

    Raises:
        InputError: The masks need more memory than `limits.masks_bytes`.
    """
    if mask_pixels == "raw":
        return runs
    height, width = runs.size_hw
    corners = xyxy.astype(np.float64).reshape(-1, 2, 2)
    windows = np.hstack([np.floor(corners.min(axis=1)), np.ceil(corners.max(axis=1))])
    windows[np.isnan(windows).any(axis=1) | (mask_pixels != "box")] = 0, 0, width, height
    windows = windows.clip(0, (width, height, width, height)).astype(np.int64)
    most = count_pieces(runs)
    limits.check("masks_bytes", _BYTES * most, "keep_mask_pixels() needs")
    spans, firsts = np.empty((most, 2), np.int64), np.zeros_like(runs.firsts)
    keep_spans(runs.spans, runs.firsts, windows, height, mask_pixels == "largest", spans, firsts)
    return Runs(runs.size_hw, spans[: firsts[-1]], firsts)


def count_pieces(runs: Runs) -> int:
    """Number of pieces after cutting all runs at column ends; an upper bound for `cut`."""
    return _count_pieces(runs.spans, max(runs.size_hw[0], 1))


@compiled("int64(Array(int64, 2, 'C', True), int64)")
def _count_pieces(spans: Spans, height: int) -> int:
    count = 0
    for start, end in spans:
        count += (end - 1) // height - start // height + 1
    return count


@compiled("int64(Array(int64, 2, 'C', True), int64, Array(int64, 1, 'C', True), int32[:, ::1])")
def cut(spans: Spans, height: int, window: Ints, pieces: NDArray[np.int32]) -> int:
    """Cut a mask's runs at column ends, and clip them to a window, left, top, right, bottom.

    Writes each piece's column, top and bottom into `pieces`, which has room for all of them; returns their number.
    """
    left, highest, right, lowest = window
    found, x = 0, 0
    for i in range(len(spans)):
        start, end = spans[i]
        while start < end:
            while start >= (x + 1) * height:  # faster than a division
                x += 1
            below = min(end, (x + 1) * height)
            top, bottom = max(start - x * height, highest), min(below - x * height, lowest)
            if left <= x < right and top < bottom:
                if found and pieces[found - 1, 0] == x and pieces[found - 1, 2] == top:  # adjacent to the last piece
                    pieces[found - 1, 2] = bottom
                else:
                    pieces[found, 0], pieces[found, 1], pieces[found, 2] = x, top, bottom
                    found += 1
            start = below
    return found


@compiled("int64(int32[::1], int64)")
def first_of(parents: NDArray[np.int32], piece: int) -> int:
    """Union-find: the first piece of the part that a piece belongs to, with path compression."""
    while parents[piece] != piece:
        parents[piece] = parents[parents[piece]]
        piece = parents[piece]
    return piece


@compiled("int64(int32[:, ::1])")
def drop_small_parts(pieces: NDArray[np.int32]) -> int:
    """Drop the pieces of small 8-connected parts, in place; returns the number of pieces kept."""
    count = len(pieces)
    parents = np.arange(count).astype(np.int32)  # union-find forest; roots are the first pieces of parts
    before, own, near = 0, 0, 0  # first piece: of the previous column, of this one, not above piece k
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


@compiled("int64(int32[:, ::1], int64, int64[:, ::1])")
def join_columns(pieces: NDArray[np.int32], height: int, spans: Spans) -> int:
    """Merge a mask's pieces into runs, no two of which touch; returns the number of runs."""
    filled = 0
    for k in range(len(pieces)):
        column = np.int64(pieces[k, 0]) * height
        start, end = column + pieces[k, 1], column + pieces[k, 2]
        if filled and spans[filled - 1, 1] == start:  # continues at the top of the next column
            spans[filled - 1, 1] = end
        else:
            spans[filled, 0], spans[filled, 1] = start, end
            filled += 1
    return filled


@compiled(
    "void(Array(int64, 2, 'C', True), Array(int64, 1, 'C', True), Array(int64, 2, 'C', True), int64, boolean,"
    " int64[:, ::1], int64[::1])"
)
def keep_spans(
    spans: Spans, firsts: Ints, windows: Ints, height: int, is_largest: bool, out: Spans, out_firsts: Ints
) -> None:
    """Write the runs of masks clipped to their windows, or of their large parts; no two runs touch."""
    filled, pieces = 0, np.empty((len(out), 3), np.int32)
    for mask in range(len(windows)):
        count = cut(spans[firsts[mask] : firsts[mask + 1]], height, windows[mask], pieces)
        if is_largest:
            count = drop_small_parts(pieces[:count])
        filled += join_columns(pieces[:count], height, out[filled:])
        out_firsts[mask + 1] = filled


@compiled("int64(Array(int64, 2, 'C', True), int64, uint8[::1])")
def write_runs(spans: Spans, pixels: int, string: NDArray[np.uint8]) -> int:
    """Encode a mask's runs, no two of which touch, as a COCO string; returns its length."""
    counts = np.empty(2 * len(spans) + 1, np.int64)
    end = np.int64(0)
    for i in range(len(spans)):
        counts[2 * i], counts[2 * i + 1] = spans[i, 0] - end, spans[i, 1] - spans[i, 0]
        end = spans[i, 1]
    counts[2 * len(spans)] = pixels - end
    return write_string(counts if end < pixels or not len(spans) else counts[:-1], string)
