"""Loops of `merging`: pieces compared, put into groups, and united."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maskjet.jit import compiled
from maskjet.mask_pixels import join_columns
from maskjet.tracking.strips import Ints, Strips, count_common

_STRIPS = "int32[:, ::1], int64[::1], int64[:, ::1], int64[::1]"  # the fields of Strips


def unite(masks: Strips, members: Ints, begins: Ints, ends: Ints) -> Strips:
    """Unite the masks `members[begins[g] : ends[g]]` of each group."""
    strips, count = np.empty_like(masks.strips), len(begins)
    firsts, boxes, areas = np.zeros(count + 1, np.int64), np.zeros((count, 4), np.int64), np.zeros(count, np.int64)
    _unite(*masks[:2], members, begins, ends, strips, firsts, boxes, areas)
    return Strips(strips[: firsts[-1]], firsts, boxes, areas)


@compiled("boolean(int64[::1], int64[::1], int64[::1], int64[::1])")
def _find_common(tile: Ints, other: Ints, window: Ints, move: Ints) -> bool:
    """Find the rectangle, left, top, right, bottom, of the pixels that two tiles compare, if there are any.

    Where tiles only touch, it is the other's line of pixels at the seam, onto which a move (x, y) brings the tile's.
    """
    are_apart = 0
    for axis in range(2):
        k = 1 - axis  # tiles begin with y
        start, end = max(tile[k], other[k]), min(tile[k] + tile[k + 2], other[k] + other[k + 2])
        move[axis] = 0
        if start == end:  # they touch
            move[axis] = 1 if other[k] == end else -1
            start, end = (end, end + 1) if other[k] == end else (end - 1, end)
            are_apart += 1
        window[axis], window[axis + 2] = start, end
        if start > end:
            return False
    return are_apart < 2


@compiled("int64(int32[:, ::1], int64[::1], int64[::1])")
def _count_within(strips: NDArray[np.int32], move: Ints, window: Ints) -> int:
    """Count the pixels of a moved mask within a window."""
    (dx, dy), count = move, np.int64(0)
    for k in range(len(strips)):
        if window[0] <= strips[k, 0] + dx < window[2]:
            count += max(0, min(strips[k, 2] + dy, window[3]) - max(strips[k, 1] + dy, window[1]))
    return int(count)


@compiled("int64[:, ::1](int32[:, ::1], int64[::1], int64[:, ::1], int32[::1], int64[::1], int64[::1], int64[:, ::1])")
def compare(
    strips: NDArray[np.int32],
    firsts: Ints,
    boxes: Ints,
    class_id: NDArray[np.int32],
    members: Ints,
    tile_firsts: Ints,
    tiles: Ints,
) -> Ints:
    """Compare the pieces of one class in tiles that overlap or touch; tile t's are `members[tile_firsts[t] : …]`.

    Returns:
        int64 [k, 5]: two pieces, the first one first, the pixels that they share, and each one's in the common region.
    """
    pairs, found = np.empty((64, 5), np.int64), 0
    window, move, still = np.empty(4, np.int64), np.empty(2, np.int64), np.zeros(2, np.int64)
    for s in range(len(tiles)):
        for t in range(s):
            if not _find_common(tiles[s], tiles[t], window, move):
                continue
            for i in members[tile_firsts[s] : tile_firsts[s + 1]]:
                own = strips[firsts[i] : firsts[i + 1]]
                for j in members[tile_firsts[t] : tile_firsts[t + 1]]:
                    if class_id[i] != class_id[j]:
                        continue
                    other = strips[firsts[j] : firsts[j + 1]]
                    shared = count_common(own, boxes[i], move[0], move[1], other, boxes[j])
                    if shared == 0:
                        continue
                    if found == len(pairs):
                        pairs = np.concatenate((pairs, np.empty_like(pairs)))
                    one, two = _count_within(own, move, window), _count_within(other, still, window)
                    pairs[found, 0], pairs[found, 3] = i, one
                    pairs[found, 1], pairs[found, 4] = j, two
                    if j < i:
                        pairs[found, 0], pairs[found, 3] = j, two
                        pairs[found, 1], pairs[found, 4] = i, one
                    pairs[found, 2] = shared
                    found += 1
    return pairs[:found].copy()


@compiled("boolean(int64[::1], int64[::1], int64, int64)")
def _have_common_tile(following: Ints, tile: Ints, one: int, two: int) -> bool:
    """Whether two groups, each a circle of pieces, have pieces of one tile."""
    i, j = one, two
    while tile[i] != tile[j]:
        j = following[j]
        if j == two:
            i = following[i]
            if i == one:
                return False
    return True


@compiled(
    "int64[::1](int64[:, ::1], int64[::1], int64[::1], boolean[::1], boolean[::1], int64[::1], float64, float32[::1])"
)
def group(
    pairs: Ints,
    by_iou: Ints,
    areas: Ints,
    is_cut: NDArray[np.bool_],
    is_judged: NDArray[np.bool_],
    tile: Ints,
    agrees: float,
    confidence: NDArray[np.float32],
) -> Ints:
    """Put pieces into groups by the rules of `merging`.

    Args:
        pairs: int64 [k, 5] of `compare`, sorted.
        by_iou: int64 [k]: the pairs by descending IoU.
        areas: int64 [n]: pixels of each piece, most confident first.
        is_cut: bool [n]: whether an inner border of its tile cuts it.
        is_judged: bool [n]: whether it is dropped unless another tile saw it whole.
        tile: int64 [n]: each one's tile.
        agrees: The threshold of IoU and of shares.
        confidence: float32 [n]; overwritten for a group's first piece by the group's.

    Returns:
        int64 [n]: the first piece of each one's group; -1 for those dropped.
    """
    count = len(areas)
    groups, is_whole = np.arange(count), ~is_cut
    same = pairs[:, 2] >= agrees * (pairs[:, 3] + pairs[:, 4] - pairs[:, 2])
    for e in range(len(pairs)):  # whole ones seen twice
        i, j = pairs[e, 0], pairs[e, 1]
        if same[e] and is_whole[i] and is_whole[j] and groups[i] == i:
            groups[j] = -1
    covered, parts = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for e in range(len(pairs)):  # crowds
        i, j, shared = pairs[e, 0], pairs[e, 1], pairs[e, 2]
        if is_whole[i] and groups[i] == i and confidence[i] > confidence[j] and shared >= agrees * areas[i]:
            covered[j] += shared
            parts[j] += 1
    for j in range(count):
        if is_whole[j] and parts[j] > 1 and covered[j] >= agrees * areas[j]:
            groups[j], is_whole[j] = -1, False
    for e in range(len(pairs)):  # cut pieces that another tile saw whole
        for k in range(2):
            piece, whole = pairs[e, k], pairs[e, 1 - k]
            if is_cut[piece] and is_whole[whole] and pairs[e, 2] >= agrees * areas[piece]:
                groups[piece] = -1
    groups[is_judged] = -1
    following = np.arange(count)  # the group's next piece, in a circle
    for e in by_iou:
        i, j = pairs[e, 0], pairs[e, 1]
        one, two = min(groups[i], groups[j]), max(groups[i], groups[j])
        if not same[e] or one < 0 or one == two or not (is_cut[i] or is_cut[j]):
            continue
        if not _have_common_tile(following, tile, one, two):
            confidence[one] = max(confidence[one], confidence[two])
            piece = two
            while groups[piece] == two:
                groups[piece] = one
                piece = following[piece]
            following[one], following[two] = following[two], following[one]
    return groups


@compiled(f"void(int32[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], {_STRIPS})")
def _unite(
    strips: NDArray[np.int32],
    firsts: Ints,
    members: Ints,
    begins: Ints,
    ends: Ints,
    out: NDArray[np.int32],
    out_firsts: Ints,
    boxes: Ints,
    areas: Ints,
) -> None:
    filled = 0
    for g in range(len(begins)):
        begin, total = filled, 0
        for i in members[begins[g] : ends[g]]:
            total += firsts[i + 1] - firsts[i]
        own, k = np.empty((total, 3), np.int32), 0
        for i in members[begins[g] : ends[g]]:
            own[k : k + firsts[i + 1] - firsts[i]] = strips[firsts[i] : firsts[i + 1]]
            k += firsts[i + 1] - firsts[i]
        if ends[g] - begins[g] > 1:
            own = own[np.argsort((own[:, 0].astype(np.int64) << 32) + own[:, 1])]
        for k in range(total):
            if filled > begin and out[filled - 1, 0] == own[k, 0] and out[filled - 1, 2] >= own[k, 1]:
                out[filled - 1, 2] = max(out[filled - 1, 2], own[k, 2])
            else:
                out[filled] = own[k]
                filled += 1
        out_firsts[g + 1] = filled
        if filled > begin:
            boxes[g, 0], boxes[g, 1] = out[begin, 0], out[begin:filled, 1].min()
            boxes[g, 2], boxes[g, 3] = out[filled - 1, 0] + 1, out[begin:filled, 2].max()
            areas[g] = (out[begin:filled, 2] - out[begin:filled, 1]).sum()


@compiled("void(int32[:, ::1], int64[::1], int64, int64[:, ::1], int64[::1])")
def write_spans(strips: NDArray[np.int32], firsts: Ints, height: int, spans: Ints, spans_firsts: Ints) -> None:
    """Write the runs of masks in an image of this height."""
    for i in range(len(firsts) - 1):
        begin = spans_firsts[i]
        spans_firsts[i + 1] = begin + join_columns(strips[firsts[i] : firsts[i + 1]], height, spans[begin:])
