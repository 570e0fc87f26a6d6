"""Merge detections of overlapping tiles into those of their frame, without dense masks.

docs/tiles.md defines the words and numbers the rules; neither the order of tiles nor that of detections matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.jit import Bools, Ints, compiled
from maskjet.masks.coco_rle import Runs
from maskjet.masks.stray_pixels import join_columns, write_masks
from maskjet.masks.strips import Strips, count_common, cut_boxes, cut_masks
from maskjet.tiling.layout import Tile

AGREES = 0.5
"""IoU from which two pieces are one instance, and share of a piece's pixels from which it lies in another."""
NEAR = 2
"""Most pixels between a cut piece and the cutting border; with 0, box AP is 0.013 lower."""


class Things(NamedTuple):
    """Merged instances of a frame of any size, most confident first."""

    strips: list[NDArray[np.int32]]
    """int32 [s, 3] per mask: column, top and exclusive bottom of each strip, ascending."""
    xyxy: NDArray[np.float32]
    """float32 [n, 4]: union of the pieces' boxes, in pixels."""
    confidence: NDArray[np.float32]
    """float32 [n]: confidences, 0..1."""
    class_id: NDArray[np.int32]
    """int32 [n]: class ids."""


def merge(found: Sequence[Detections], tiles: Sequence[Tile], size_hw: tuple[int, int], most: int) -> Detections:
    """Merge the detections of a frame's tiles, most confident first, by the rules of docs/tiles.md.

    Each tile's are in its own coordinates, all with masks, or none, and then boxes are compared. Raises InputError if a
    mask is malformed, or the masks need more memory than `limits.masks_bytes`.
    """
    height, width = size_hw
    things = merge_tiles(found, tiles, size_hw, most)
    return Detections(
        image_size=(height, width),
        xyxy=things.xyxy.clip(0, np.array((width, height, width, height), np.float32)),
        confidence=things.confidence,
        class_id=things.class_id,
        rle=None if found[0].rle is None else write_masks(to_runs(things.strips, size_hw)),
        class_names={number: name for each in found for number, name in each.class_names.items()},
    )


def merge_tiles(
    found: Sequence[Detections], tiles: Sequence[Tile], size_hw: tuple[int, int], most: int | None
) -> Things:
    """Merge the tiles of a frame of any size, also one too large for masks; for arguments and errors see `merge`."""
    by_size = sorted(range(len(tiles)), key=lambda k: (tiles[k].height * tiles[k].width, tiles[k]))
    found, places = [found[k] for k in by_size], np.array([tiles[k] for k in by_size], np.int64)
    tile = np.repeat(np.arange(len(places)), [len(each) for each in found])
    xyxy, confidence, class_id = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("xyxy", "confidence", "class_id")
    )
    masks, corners = _cut(found), places[tile][:, [1, 0]]
    boxes, xyxy = masks.boxes + np.tile(corners, 2), xyxy + np.tile(corners, 2).astype(np.float32)
    strips, ends = masks.strips, masks.firsts[1:]
    strips += np.repeat(corners[:, [0, 1, 1]].astype(np.int32), np.diff(masks.firsts), axis=0)
    order = np.lexsort((class_id, masks.areas, *boxes.T, *xyxy.T, tile, -confidence))
    spans = np.stack([masks.firsts[:-1], ends], axis=1)[order]
    xyxy, confidence, class_id = xyxy[order], confidence[order], class_id[order]
    boxes, tile, areas = boxes[order], tile[order], masks.areas[order]

    is_cut, is_judged = _find_cut(boxes, tile, places, size_hw)
    pairs = _compare(strips, spans, boxes, class_id, tile, places, is_cut)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    groups = _group(pairs, areas, is_cut, is_judged, tile, class_id, AGREES)
    heads = np.flatnonzero(groups == np.arange(len(groups)))[:most]
    around, united = xyxy[heads], [strips[first:end] for first, end in spans[heads].tolist()]
    for k in np.flatnonzero(np.bincount(groups[groups >= 0], minlength=len(groups))[heads] > 1):
        members = np.flatnonzero(groups == heads[k])
        around[k, :2], around[k, 2:] = xyxy[members, :2].min(axis=0), xyxy[members, 2:].max(axis=0)
        united[k] = _unite(np.concatenate([strips[first:end] for first, end in spans[members]]))
    return Things(united, around, confidence[heads], class_id[heads])


def to_runs(masks: Sequence[NDArray[np.int32]], size_hw: tuple[int, int]) -> Runs:
    """Convert masks from strips to runs, in an image or crop of (height, width), to which strips are relative."""
    firsts, filled = np.zeros(len(masks) + 1, np.int64), 0
    spans = np.empty((sum(map(len, masks)), 2), np.int64)
    for k, strips in enumerate(masks):
        firsts[k + 1] = filled = filled + join_columns(strips, size_hw[0], spans[filled:])
    return Runs(size_hw, spans[:filled], firsts)


def _cut(found: Sequence[Detections]) -> Strips:
    """Convert masks or boxes of tiles to strips, in the tiles' coordinates."""
    parts = []
    for size_hw, alike in groupby(found, key=lambda each: each.image_size):
        group = list(alike)
        if found[0].rle is None:
            parts.append(cut_boxes(np.concatenate([each.xyxy for each in group]), size_hw))
        else:
            parts.append(cut_masks([rle for each in group for rle in each.rle or ()], size_hw))
    strips, boxes, areas = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("strips", "boxes", "areas")
    )
    return Strips(strips, np.cumsum(np.concatenate([[0], *(np.diff(part.firsts) for part in parts)])), boxes, areas)


def _find_cut(boxes: Ints, tile: Ints, tiles: Ints, size_hw: tuple[int, int]) -> tuple[Bools, ...]:
    """Find pieces cut by inner borders of their tiles, and those of them to which rule 4 applies."""
    starts, ends = tiles[:, [1, 0]], tiles[:, [1, 0]] + tiles[:, [3, 2]]
    is_before, is_behind = boxes[:, :2] - NEAR <= starts[tile], boxes[:, 2:] + NEAR >= ends[tile]
    cuts = (is_before & (starts > 0)[tile]) | (is_behind & (ends < size_hw[::-1])[tile])  # per axis, x and y
    cuts &= boxes[:, 2:] > boxes[:, :2]  # boxes of empty masks lie in the corner
    is_cut = np.asarray(cuts.any(axis=1))
    if not np.array_equal(tiles[-1], (0, 0, *size_hw)):
        return is_cut, np.zeros_like(is_cut)
    laps = [(np.diff(np.unique(starts[:-1, axis])) < (ends - starts)[0, axis]).all() for axis in range(2)]
    return is_cut, is_cut & ~(cuts & ~np.array(laps)).any(axis=1)


@compiled("boolean(int64[::1], int64[::1], int64[::1], int64[::1])")
def _find_common(tile: Ints, other: Ints, move: Ints, window: Ints) -> bool:
    """Find the window (left, top, right, bottom) in which pieces of two tiles are compared, if any.

    Where tiles only touch, it is the other's line of pixels at the seam, onto which a move (x, y) brings the tile's.
    """
    seams = 0
    for axis in range(2):
        k = 1 - axis  # tiles begin with y
        start, end = max(tile[k], other[k]), min(tile[k] + tile[k + 2], other[k] + other[k + 2])
        if start > end:
            return False
        seams += start == end
        move[axis] = 0 if start < end else 1 if tile[k] < start else -1
        window[axis], window[axis + 2] = start + min(move[axis], 0), end + max(move[axis], 0)
    return seams < 2


@compiled("int64(int32[:, ::1], int64, int64, int64[::1])")
def _count_within(strips: NDArray[np.int32], dx: int, dy: int, window: Ints) -> int:
    """Count the pixels of a moved mask within a window."""
    count = np.int64(0)
    for k in range(len(strips)):
        if window[0] <= strips[k, 0] + dx < window[2]:
            count += max(0, min(strips[k, 2] + dy, window[3]) - max(strips[k, 1] + dy, window[1]))
    return int(count)


@compiled(
    "int64[:, ::1](int32[:, ::1], int64[:, ::1], int64[:, ::1], int32[::1], int64[::1], int64[:, ::1], boolean[::1])"
)
def _compare(
    strips: NDArray[np.int32],
    spans: Ints,
    boxes: Ints,
    class_id: NDArray[np.int32],
    tile: Ints,
    tiles: Ints,
    is_cut: Bools,
) -> Ints:
    """Compare the pieces `strips[spans[i, 0] : spans[i, 1]]` of tiles that overlap or touch.

    Of different classes only a piece of the full image and a less confident, whole one are compared.

    Returns:
        int64 [k, 5]: two pieces, in order, the pixels that they share, and each one's in the rectangle of both tiles.
    """
    pairs, found, move, window = np.empty((64, 5), np.int64), 0, np.empty(2, np.int64), np.empty(4, np.int64)
    by_left, sides = np.argsort(boxes[:, 0]), tiles[:, 2] + tiles[:, 3]
    for a in range(len(boxes)):
        for b in range(a + 1, len(boxes)):
            i, j = min(by_left[a], by_left[b]), max(by_left[a], by_left[b])
            if boxes[by_left[b], 0] > boxes[by_left[a], 2]:
                break
            if boxes[i, 1] > boxes[j, 3] or boxes[j, 1] > boxes[i, 3]:
                continue
            if class_id[i] != class_id[j] and (is_cut[j] or sides[tile[i]] <= sides[tile[j]]):
                continue  # only the full image is larger than a tile
            if tile[i] == tile[j] or not _find_common(tiles[tile[i]], tiles[tile[j]], move, window):
                continue
            own, other = strips[spans[i, 0] : spans[i, 1]], strips[spans[j, 0] : spans[j, 1]]
            shared = count_common(own, boxes[i], move[0], move[1], other, boxes[j])
            if shared == 0:
                continue
            if found == len(pairs):
                pairs = np.concatenate((pairs, np.empty_like(pairs)))
            pairs[found, 0], pairs[found, 1], pairs[found, 2] = i, j, shared
            pairs[found, 3] = _count_within(own, move[0], move[1], window)
            pairs[found, 4] = _count_within(other, 0, 0, window)
            found += 1
    return pairs[:found].copy()


@compiled("boolean(int64[::1], int64[::1], int64, int64)")
def _have_common_tile(following: Ints, tile: Ints, one: int, two: int) -> bool:
    """Whether two groups, circular linked lists of pieces, contain pieces of the same tile."""
    i, j = one, two
    while tile[i] != tile[j]:
        j = following[j]
        if j == two:
            i = following[i]
            if i == one:
                return False
    return True


@compiled("int64[::1](int64[:, ::1], int64[::1], boolean[::1], boolean[::1], int64[::1], int32[::1], float64)")
def _group(
    pairs: Ints, areas: Ints, is_cut: Bools, is_judged: Bools, tile: Ints, class_id: NDArray[np.int32], agrees: float
) -> Ints:
    """Group pieces, most confident first, by the rules above; returns each one's first piece, -1 if dropped."""
    count = len(areas)
    groups, is_whole = np.arange(count), ~is_cut
    iou = pairs[:, 2] / (pairs[:, 3] + pairs[:, 4] - pairs[:, 2])
    for e in range(len(pairs)):  # rule 1
        i, j = pairs[e, 0], pairs[e, 1]
        if iou[e] >= agrees and is_whole[i] and is_whole[j] and groups[i] == i:
            groups[j] = -1
    is_same = class_id[pairs[:, 0]] == class_id[pairs[:, 1]]
    pairs, iou = pairs[is_same], iou[is_same]
    covered, parts = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for e in range(len(pairs)):  # rule 2
        i, j, shared = pairs[e, 0], pairs[e, 1], pairs[e, 2]
        if is_whole[i] and groups[i] == i and shared >= agrees * areas[i]:
            covered[j] += shared
            parts[j] += 1
    for j in range(count):
        if is_whole[j] and parts[j] > 1 and covered[j] >= agrees * areas[j]:
            groups[j], is_whole[j] = -1, False
    for e in range(len(pairs)):  # rule 3
        for k in range(2):
            piece, whole = pairs[e, k], pairs[e, 1 - k]
            if is_cut[piece] and is_whole[whole] and pairs[e, 2] >= agrees * areas[piece]:
                groups[piece] = -1
    groups[is_judged] = -1  # rule 4
    following = np.arange(count)  # circular linked list: next piece of the group
    for e in np.argsort(-iou, kind="mergesort"):  # rule 5
        i, j = pairs[e, 0], pairs[e, 1]
        one, two = min(groups[i], groups[j]), max(groups[i], groups[j])
        if iou[e] >= agrees and one >= 0 and not _have_common_tile(following, tile, one, two):  # false for itself
            piece = two
            while groups[piece] == two:
                groups[piece] = one
                piece = following[piece]
            following[one], following[two] = following[two], following[one]
    return groups


@compiled("int32[:, ::1](int32[:, ::1])")
def _unite(strips: NDArray[np.int32]) -> NDArray[np.int32]:
    """Union of strips, which may overlap and be in any order."""
    strips, filled = strips[np.argsort((strips[:, 0].astype(np.int64) << 32) + strips[:, 1])], 0
    for k in range(len(strips)):
        if filled and strips[filled - 1, 0] == strips[k, 0] and strips[filled - 1, 2] >= strips[k, 1]:
            strips[filled - 1, 2] = max(strips[filled - 1, 2], strips[k, 2])
        else:
            strips[filled] = strips[k]
            filled += 1
    return strips[:filled].copy()
