"""Masks as vertical strips, and the pixels that they share, without a dense mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskjet import coco_rle, limits
from maskjet.detections import Detections
from maskjet.jit import compiled
from maskjet.mask_pixels import count_pieces, cut, write_masks

Ints = NDArray[np.int64]
_BYTES = 56  # most memory that is taken per strip, also where masks are merged


class Strips(NamedTuple):
    """Masks, each cut into strips of one column."""

    strips: NDArray[np.int32]
    """int32 [s, 3]: column, top and bottom of each strip, bottom exclusive; a mask's in ascending order."""
    firsts: Ints
    """int64 [n + 1]: `strips[firsts[i] : firsts[i + 1]]` are mask i's."""
    boxes: Ints
    """int64 [n, 4]: tight box of each mask, right and bottom exclusive; all 0 for an empty one."""
    areas: Ints
    """int64 [n]: pixels of each mask."""


def cut_strips(found: Detections) -> Strips:
    """Cut the masks of detections into strips; without masks, their boxes, rounded outwards to whole pixels.

    Raises:
        InputError: As in `cut_masks`.
    """
    size_hw = found.image_size
    return cut_boxes(found.xyxy, size_hw) if found.rle is None else cut_masks(found.rle, size_hw)


def cut_masks(rles: Sequence[coco_rle.RLE], size_hw: tuple[int, int]) -> Strips:
    """Cut masks of one size into strips.

    Raises:
        InputError: A mask is malformed, or they need more memory than `limits.masks_bytes`.
    """
    count, runs = len(rles), coco_rle.to_runs(rles, size_hw)
    limits.check("masks_bytes", _BYTES * (most := count_pieces(runs)), "masks need")
    strips, firsts = np.empty((most, 3), np.int32), np.zeros(count + 1, np.int64)
    boxes, areas = np.zeros((count, 4), np.int64), np.zeros(count, np.int64)
    _cut_runs(runs.spans, runs.firsts, runs.size_hw, strips, firsts, boxes, areas)
    return Strips(strips, firsts, boxes, areas)


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
    """Move and scale a mask as its box, float64 [4] in pixels, to a target; what leaves the image is cut off.

    Raises:
        InputError: The mask is malformed.
    """
    height, width = rle["size"]
    strips = cut_masks([rle], (height, width)).strips
    scale = np.maximum(target[2:] - target[:2], 1) / np.maximum(box[2:] - box[:2], 1)
    shift = (target[:2] + target[2:] - scale * (box[:2] + box[2:])) / 2
    left, right = np.rint(scale[0] * strips[[0, -1], 0] + shift[0] + (0, scale[0])) if len(strips) else (0, 0)
    columns = np.arange(max(left, 0), min(right, width), dtype=np.int64)
    # Each column gets the strips of the one that lies there; rounded edges of a strip keep their order.
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


def join_strips(parts: Sequence[NDArray[np.int32]], boxes: Ints, areas: Ints) -> Strips:
    """Put the strips of single masks together."""
    firsts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=firsts[1:])
    return Strips(np.concatenate([*parts, np.empty((0, 3), np.int32)]), firsts, boxes, areas)


def count_shared(masks: Strips, moves: Ints, others: Strips) -> Ints:
    """Count the pixels that each mask, moved by int64 [n, 2] (x, y) pixels, shares with each other: int64 [n, m]."""
    shared = np.zeros((len(masks.areas), len(others.areas)), np.int64)
    _count_shared(masks.strips, masks.firsts, masks.boxes, moves, others.strips, others.firsts, others.boxes, shared)
    return shared


def count_inside(masks: Strips, moves: Ints, size_hw: tuple[int, int]) -> Ints:
    """Count the pixels of each mask, moved by int64 [n, 2] (x, y) pixels, that are within the image: int64 [n]."""
    inside = np.zeros(len(masks.areas), np.int64)
    _count_inside(masks.strips, masks.firsts, moves, *size_hw, inside)
    return inside


@compiled(
    "void(Array(int64, 2, 'C', True), Array(int64, 1, 'C', True), UniTuple(int64, 2),"
    " int32[:, ::1], int64[::1], int64[:, ::1], int64[::1])"
)
def _cut_runs(
    spans: Ints,
    spans_firsts: Ints,
    size_hw: tuple[int, int],
    strips: NDArray[np.int32],
    firsts: Ints,
    boxes: Ints,
    areas: Ints,
) -> None:
    filled, (height, width) = 0, size_hw
    window = np.array([0, 0, width, height])
    for mask in range(len(areas)):
        own = strips[filled:]
        count = cut(spans[spans_firsts[mask] : spans_firsts[mask + 1]], height, window, own)
        top, bottom = height, 0
        for k in range(count):
            areas[mask] += own[k, 2] - own[k, 1]
            top, bottom = min(top, own[k, 1]), max(bottom, own[k, 2])
        if count:
            boxes[mask, 0], boxes[mask, 1] = own[0, 0], top
            boxes[mask, 2], boxes[mask, 3] = own[count - 1, 0] + 1, bottom
        filled += count
        firsts[mask + 1] = filled


_STRIPS = "int32[:, ::1], int64[::1]"


@compiled("int64(int32[:, ::1], int64[::1], int64, int64, int32[:, ::1], int64[::1])")
def count_common(
    strips: NDArray[np.int32], box: Ints, dx: int, dy: int, others: NDArray[np.int32], other_box: Ints
) -> int:
    """Count the pixels that a mask, moved, shares with another; both by their strips and tight boxes."""
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


@compiled(f"void({_STRIPS}, int64[:, ::1], int64[:, ::1], {_STRIPS}, int64[:, ::1], int64[:, ::1])")
def _count_shared(
    strips: NDArray[np.int32],
    firsts: Ints,
    boxes: Ints,
    moves: Ints,
    other_strips: NDArray[np.int32],
    other_firsts: Ints,
    other_boxes: Ints,
    shared: Ints,
) -> None:
    for i in range(len(boxes)):
        own = strips[firsts[i] : firsts[i + 1]]
        for j in range(len(other_boxes)):
            others = other_strips[other_firsts[j] : other_firsts[j + 1]]
            shared[i, j] = count_common(own, boxes[i], moves[i, 0], moves[i, 1], others, other_boxes[j])


@compiled(f"void({_STRIPS}, int64[:, ::1], int64, int64, int64[::1])")
def _count_inside(strips: NDArray[np.int32], firsts: Ints, moves: Ints, height: int, width: int, inside: Ints) -> None:
    for i in range(len(inside)):
        dx, dy = moves[i, 0], moves[i, 1]
        for p in range(firsts[i], firsts[i + 1]):
            if 0 <= strips[p, 0] + dx < width:
                inside[i] += max(0, min(strips[p, 2] + dy, height) - max(strips[p, 1] + dy, 0))
