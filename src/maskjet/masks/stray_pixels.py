"""Drop pixels of masks outside their boxes, on runs, without dense masks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.jit import Ints, compiled
from maskjet.masks.coco_rle import BYTES_PER_COUNT, RLE, Runs, to_runs, write_string

_BYTES = 54  # most bytes of memory per piece
Spans = NDArray[np.int64]


def clip_masks(rles: Sequence[RLE], xyxy: NDArray[np.float32], size_hw: tuple[int, int]) -> list[dict[str, Any]]:
    """Clip n RLEs of one (height, width) to their boxes; see `clip_runs`."""
    return write_masks(clip_runs(to_runs(rles, size_hw), xyxy))


def write_masks(runs: Runs) -> list[dict[str, Any]]:
    """Encode runs, no two of which touch, as RLEs."""
    height, width = map(int, runs.size_hw)
    strings = []
    for first, end in pairwise(runs.firsts.tolist()):
        string = np.empty(BYTES_PER_COUNT * (2 * (end - first) + 1), np.uint8)
        strings.append(string[: write_runs(runs.spans[first:end], height * width, string)].tobytes())
    return [{"size": [height, width], "counts": string} for string in strings]


def clip_runs(runs: Runs, xyxy: NDArray[np.float32]) -> Runs:
    """Clip n masks to their boxes, float32 [n, 4] in pixels, rounded outwards; a box with NaN keeps all pixels.

    Raises:
        InputError: The masks need more memory than `limits.masks_bytes`.
    """
    height, width = runs.size_hw
    corners = xyxy.astype(np.float64).reshape(-1, 2, 2)
    windows = np.hstack([np.floor(corners.min(axis=1)), np.ceil(corners.max(axis=1))])
    windows[np.isnan(windows).any(axis=1)] = 0, 0, width, height
    windows = windows.clip(0, (width, height, width, height)).astype(np.int64)
    most = count_pieces(runs.spans, height)
    limits.check("masks_bytes", _BYTES * most, "keep_mask_pixels() needs")
    spans, firsts = np.empty((most, 2), np.int64), np.zeros_like(runs.firsts)
    clip_spans(runs.spans, runs.firsts, windows, height, spans, firsts)
    return Runs(runs.size_hw, spans[: firsts[-1]], firsts)


@compiled("int64(Array(int64, 2, 'C', True), int64)")
def count_pieces(spans: Spans, height: int) -> int:
    """Number of pieces after cutting all runs at column ends; an upper bound for `cut`."""
    count, below = 0, np.int64(0)  # end of the column of a run's start, mostly the next one: saves divisions
    for i in range(len(spans)):
        start, end = spans[i, 0], spans[i, 1]
        below += height if start >= below else 0
        if not below - height <= start < below:
            below = (start // height + 1) * height
        count += 1 if end <= below else (end - 1 - below) // height + 2
    return count


@compiled("int64(Array(int64, 2, 'C', True), int64, Array(int64, 1, 'C', True), int32[:, ::1])")
def cut(spans: Spans, height: int, window: Ints, pieces: NDArray[np.int32]) -> int:
    """Cut a mask's runs at column ends, and clip them to a window, left, top, right, bottom.

    Writes each piece's column, top and bottom into `pieces`, which has room for all of them; returns their number.
    """
    left, highest, right, lowest = window
    found, x = 0, spans[0, 0] // height if len(spans) else 0
    for i in range(len(spans)):
        start, end = spans[i, 0], spans[i, 1]
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
    "void(Array(int64, 2, 'C', True), Array(int64, 1, 'C', True), Array(int64, 2, 'C', True), int64, int64[:, ::1],"
    " int64[::1])"
)
def clip_spans(spans: Spans, firsts: Ints, windows: Ints, height: int, out: Spans, out_firsts: Ints) -> None:
    """Write the runs of masks clipped to their windows; no two runs touch."""
    filled, pieces = 0, np.empty((len(out), 3), np.int32)
    for mask in range(len(windows)):
        count = cut(spans[firsts[mask] : firsts[mask + 1]], height, windows[mask], pieces)
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
