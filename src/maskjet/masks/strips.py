"""Masks as vertical strips; intersections without dense masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.jit import Ints, compiled
from maskjet.masks import coco_rle
from maskjet.masks.stray_pixels import count_pieces, cut, write_masks

_BYTES = 56  # most bytes of memory per strip, merging included


class Strips(NamedTuple):
    """Masks, each cut into strips of one column."""

    strips: NDArray[np.int32]
    """int32 [s, 3]: column, top and exclusive bottom of each strip; ascending within a mask."""
    firsts: Ints
    """int64 [n + 1]: offsets; `strips[firsts[i] : firsts[i + 1]]` are mask i."""
    boxes: Ints
    """int64 [n, 4]: tight box of each mask, right and bottom exclusive; all 0 for an empty one."""
    areas: Ints
    """int64 [n]: area of each mask in pixels."""


types: Any = numba.types  # numba's types lack annotations
STRIPS = types.NamedTuple((numba.int32[:, ::1], numba.int64[::1], numba.int64[:, ::1], numba.int64[::1]), Strips)
"""Type of `Strips` in compiled functions."""


def cut_masks(rles: Sequence[coco_rle.RLE], size_hw: tuple[int, int]) -> Strips:
    """Cut masks of one size into strips; raises InputError if one is malformed, or they exceed `limits.masks_bytes`."""
    runs = coco_rle.to_runs(rles, size_hw)
    limits.check("masks_bytes", _BYTES * (most := count_pieces(runs.spans, size_hw[0])), "masks need")
    return _cut_runs(runs.spans, runs.firsts, runs.size_hw, most)


def cut_boxes(xyxy: NDArray[np.float32], size_hw: tuple[int, int]) -> Strips:
    """Cut boxes, rounded outwards to whole pixels, into strips."""
    (height, width), boxes = size_hw, np.zeros((len(xyxy), 4), np.int64)
    corners = np.minimum(np.fmax(xyxy, 0), (width, height, width, height))
    boxes[:, :2], boxes[:, 2:] = np.floor(corners[:, :2]), np.ceil(corners[:, 2:])
    boxes[(boxes[:, 2:] <= boxes[:, :2]).any(1)] = 0
    x1, y1, x2, y2 = boxes.T
    widths = x2 - x1
    firsts = np.concatenate([[0], np.cumsum(widths)])
    columns = np.arange(firsts[-1]) + np.repeat(x1 - firsts[:-1], widths)
    strips = np.stack([columns, np.repeat(y1, widths), np.repeat(y2, widths)], axis=1).astype(np.int32)
    return Strips(strips, firsts, boxes, widths * (y2 - y1))


def move_mask(rle: coco_rle.RLE, box: NDArray[np.float64], target: NDArray[np.float64]) -> dict[str, Any]:
    """Move and scale a mask from its box, float64 [4] in pixels, to a target box; clipped to the image.

    Raises:
        InputError: The mask is malformed.
    """
    height, width = rle["size"]
    strips = cut_masks([rle], (height, width)).strips
    scale = np.maximum(target[2:] - target[:2], 1) / np.maximum(box[2:] - box[:2], 1)
    shift = (target[:2] + target[2:] - scale * (box[:2] + box[2:])) / 2
    left, right = np.rint(scale[0] * strips[[0, -1], 0] + shift[0] + (0, scale[0])) if len(strips) else (0, 0)
    columns = np.arange(max(left, 0), min(right, width), dtype=np.int64)
    # Each target column copies the strips of its source column, scaled; rounding keeps their order.
    sources = np.floor((columns + 0.5 - shift[0]) / scale[0]).clip(*strips[[0, -1], 0]) if len(columns) else columns
    begins, ends = (np.searchsorted(strips[:, 0], sources, side) for side in ("left", "right"))
    counts = ends - begins
    picked = np.arange(counts.sum()) + np.repeat(begins - counts.cumsum() + counts, counts)
    edges = np.rint(scale[1] * strips[picked, 1:] + shift[1]).clip(0, height).astype(np.int64)
    spans = edges + np.repeat(columns, counts)[:, None] * height
    spans = spans[spans[:, 0] < spans[:, 1]]
    is_apart = spans[1:, 0] > spans[:-1, 1]
    starts, ends = spans[np.append(True, is_apart)[: len(spans)], 0], spans[np.append(is_apart, True)[: len(spans)], 1]
    runs = coco_rle.Runs((height, width), np.stack([starts, ends], axis=1), np.array([0, len(starts)]))
    return write_masks(runs)[0]


@compiled(
    STRIPS(
        *(types.Array(numba.int64, 2, "C", True), types.Array(numba.int64, 1, "C", True)),
        *(types.UniTuple(numba.int64, 2), numba.int64),
    )
)
def _cut_runs(spans: Ints, spans_firsts: Ints, size_hw: tuple[int, int], most: int) -> Strips:
    """Cut the runs of masks (`coco_rle.Runs`) into at most `most` strips."""
    filled, (height, width), count = 0, size_hw, len(spans_firsts) - 1
    strips, firsts = np.empty((most, 3), np.int32), np.zeros(count + 1, np.int64)
    boxes, areas = np.zeros((count, 4), np.int64), np.zeros(count, np.int64)
    window = np.array([0, 0, width, height])
    for mask in range(count):
        own = strips[filled:]
        found = cut(spans[spans_firsts[mask] : spans_firsts[mask + 1]], height, window, own)
        top, bottom = height, 0
        for k in range(found):
            areas[mask] += own[k, 2] - own[k, 1]
            top, bottom = min(top, own[k, 1]), max(bottom, own[k, 2])
        if found:
            boxes[mask, 0], boxes[mask, 1] = own[0, 0], top
            boxes[mask, 2], boxes[mask, 3] = own[found - 1, 0] + 1, bottom
        filled += found
        firsts[mask + 1] = filled
    return Strips(strips, firsts, boxes, areas)


@compiled("int64(int32[:, ::1], int64[::1], int64, int64, int32[:, ::1], int64[::1])")
def count_common(
    strips: NDArray[np.int32], box: Ints, dx: int, dy: int, others: NDArray[np.int32], other_box: Ints
) -> int:
    """Count the common pixels of a moved mask and another, from strips and tight boxes."""
    left, right = max(box[0] + dx, other_box[0]), min(box[2] + dx, other_box[2])
    if left >= right or max(box[1] + dy, other_box[1]) >= min(box[3] + dy, other_box[3]):
        return 0
    p, q, count = 0, 0, np.int64(0)
    while p < len(strips) and strips[p, 0] + dx < left:
        p += 1
    while q < len(others) and others[q, 0] < left:
        q += 1
    while p < len(strips) and q < len(others):
        ahead = strips[p, 0] + dx - others[q, 0]
        bottom, other_bottom = strips[p, 2] + dy, others[q, 2]
        if ahead == 0:
            count += max(0, min(bottom, other_bottom) - max(strips[p, 1] + dy, others[q, 1]))
        if ahead < 0 or (ahead == 0 and bottom < other_bottom):
            p += 1
        else:
            q += 1
    return int(count)


@compiled(numba.int64[:, ::1](STRIPS, numba.int64[:, ::1], STRIPS))
def count_shared(masks: Strips, moves: Ints, others: Strips) -> Ints:
    """Intersections of n masks, moved by int64 [n, 2] (x, y) pixels, with m others: int64 [n, m] pixels."""
    shared = np.zeros((len(masks.areas), len(others.areas)), np.int64)
    for i in range(len(masks.areas)):
        own, box = masks.strips[masks.firsts[i] : masks.firsts[i + 1]], masks.boxes[i]
        dx, dy = moves[i, 0], moves[i, 1]
        left, top, right, bottom = box[0] + dx, box[1] + dy, box[2] + dx, box[3] + dy
        for j in range(len(others.areas)):
            x1, y1, x2, y2 = others.boxes[j, 0], others.boxes[j, 1], others.boxes[j, 2], others.boxes[j, 3]
            if left < x2 and x1 < right and top < y2 and y1 < bottom:  # test first: slicing arrays takes longer
                other = others.strips[others.firsts[j] : others.firsts[j + 1]]
                shared[i, j] = count_common(own, box, dx, dy, other, others.boxes[j])
    return shared


@compiled(numba.int64[::1](STRIPS, numba.int64[:, ::1], types.UniTuple(numba.int64, 2)))
def count_inside(masks: Strips, moves: Ints, size_hw: tuple[int, int]) -> Ints:
    """Count the pixels of each mask, moved by int64 [n, 2] (x, y) pixels, that are within the image: int64 [n]."""
    inside, (height, width) = np.zeros(len(masks.areas), np.int64), size_hw
    for i in range(len(inside)):
        dx, dy, box = moves[i, 0], moves[i, 1], masks.boxes[i]
        if box[0] + dx >= 0 and box[1] + dy >= 0 and box[2] + dx <= width and box[3] + dy <= height:
            inside[i] = masks.areas[i]
            continue
        for p in range(masks.firsts[i], masks.firsts[i + 1]):
            if 0 <= masks.strips[p, 0] + dx < width:
                inside[i] += max(0, min(masks.strips[p, 2] + dy, height) - max(masks.strips[p, 1] + dy, 0))
    return inside


@compiled(
    types.Tuple((numba.int32[:, ::1], numba.int64[::1]))(
        *(numba.int32[:, ::1], numba.int64[::1], numba.int32[:, ::1], numba.int64[::1], numba.int64[::1])
    )
)
def gather(
    strips: NDArray[np.int32], firsts: Ints, others: NDArray[np.int32], other_firsts: Ints, origins: Ints
) -> tuple[NDArray[np.int32], Ints]:
    """Collect strips and `firsts` of selected masks, int64 [n]: i from the first set, ~i from the second."""
    filled = np.zeros(len(origins) + 1, np.int64)
    for n, i in enumerate(origins):
        length = firsts[i + 1] - firsts[i] if i >= 0 else other_firsts[~i + 1] - other_firsts[~i]
        filled[n + 1] = filled[n] + length
    gathered = np.empty((filled[-1], 3), np.int32)
    for n, i in enumerate(origins):
        mask = strips[firsts[i] : firsts[i + 1]] if i >= 0 else others[other_firsts[~i] : other_firsts[~i + 1]]
        gathered[filled[n] : filled[n + 1]] = mask
    return gathered, filled
