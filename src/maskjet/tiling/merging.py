"""Detections of overlapping tiles, merged into those of their frame, without a dense mask.

Only pieces of one class and of different tiles that overlap or touch are compared. A piece is *cut* if its mask touches
an inner border of its tile, so that the thing may go on; else it is *whole*. Two pieces *agree* if the IoU of their
masks is at least `AGREES` within the rectangle that both tiles see; of tiles that only touch, along the lines of pixels
on both sides of the seam. A piece *lies in* another if at least `AGREES` of its pixels do.

1. Of whole pieces that agree, the most confident one stays: the same thing seen twice.
2. A whole piece is dropped if two or more that are left, whole and more confident, lie in it and cover `AGREES` of it:
   a crowd seen as one. If they are less confident, or cover less, all stay.
3. A cut piece that lies in a whole one is dropped.
4. Cut pieces left are dropped if the full image is among the tiles and neighbours overlap at the borders that cut
   them: some tile would have seen a small thing whole, and the full image a large one.
5. Others that agree are joined, pairs with the highest IoU first, unless pieces of one tile would come together, as
   their tile saw two things. A whole piece that agrees with a cut one which does not lie in it is joined to it, too.
   What is joined has the highest confidence of its pieces.

Neither the order of tiles nor that of detections matters. Measured in 24 drawn streets of 4K, with the embedded model
and tiles of 640 pixels: of 300 cut pieces and joined ones that rule 4 drops, one is right; keeping them costs 0.03 of
mask AP, and to prefer a tile's mask to a more confident one of the full image costs 0.02.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskjet.coco_rle import Runs
from maskjet.detections import Detections
from maskjet.mask_pixels import write_masks
from maskjet.tiling.grouping import compare, group, unite, write_spans
from maskjet.tiling.layout import Tile
from maskjet.tracking.strips import Ints, Strips, cut_boxes, cut_masks

AGREES = 0.5
"""IoU from which two pieces are the same thing, and share of a piece's pixels from which it lies in another."""


class Pieces(NamedTuple):
    """Detections of tiles in the frame's coordinates, most confident first."""

    tiles: Ints
    """int64 [t, 4]: top, left, height and width of each tile."""
    tile: Ints
    """int64 [n]: index of each piece's tile."""
    masks: Strips
    """Their masks; where there are none, their boxes, rounded outwards to whole pixels."""
    xyxy: NDArray[np.float32]
    """float32 [n, 4]: boxes in pixels."""
    confidence: NDArray[np.float32]
    """float32 [n]: 0..1."""
    class_id: NDArray[np.int32]
    """int32 [n]: classes."""


class Merged(NamedTuple):
    """Things made of pieces, most confident first; masks are of the frame, however large it is."""

    masks: Strips
    """The union of each one's pieces, in the frame's coordinates, with its tight box."""
    xyxy: NDArray[np.float32]
    """float32 [n, 4]: union of the pieces' boxes, in pixels."""
    confidence: NDArray[np.float32]
    """float32 [n]: 0..1."""
    class_id: NDArray[np.int32]
    """int32 [n]: classes."""


def merge(found: Sequence[Detections], tiles: Sequence[Tile], size_hw: tuple[int, int], most: int) -> Detections:
    """Merge the detections of a frame's tiles; see the top of this file for the rules.

    Args:
        found: Detections of each tile, in its own coordinates; all with masks, or none.
        tiles: The tiles, also the full image.
        size_hw: (height, width) of the frame in pixels.
        most: Most detections to return.

    Returns:
        Detections of the frame, most confident first.

    Raises:
        InputError: A mask is malformed, or the masks need more memory than `limits.masks_bytes`.
    """
    height, width = size_hw
    merged = merge_pieces(gather(found, tiles), size_hw, most)
    return Detections(
        image_size=(height, width),
        xyxy=merged.xyxy.clip(0, np.array((width, height, width, height), np.float32)),
        confidence=merged.confidence,
        class_id=merged.class_id,
        rle=None if found[0].rle is None else write_masks(to_runs(merged.masks, size_hw)),
        class_names={number: name for each in found for number, name in each.class_names.items()},
    )


def gather(found: Sequence[Detections], tiles: Sequence[Tile]) -> Pieces:
    """Put the detections of tiles together, in an order that only they decide; arguments and errors as in `merge`."""
    places = sorted(range(len(tiles)), key=lambda i: (tiles[i].height * tiles[i].width, tiles[i]))
    found, sorted_tiles = [found[i] for i in places], np.array([tiles[i] for i in places], np.int64)
    tile = np.repeat(np.arange(len(places)), [len(each) for each in found])
    xyxy, confidence, class_id = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("xyxy", "confidence", "class_id")
    )
    parts = []
    for size_hw, alike in groupby(found, key=lambda each: each.image_size):  # the tiles, and the full image
        group = list(alike)
        if found[0].rle is None:
            parts.append(cut_boxes(np.concatenate([each.xyxy for each in group]), size_hw))
        else:
            parts.append(cut_masks([rle for each in group for rle in each.rle or ()], size_hw))
    strips, boxes, areas = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("strips", "boxes", "areas")
    )
    counts = np.concatenate([np.diff(part.firsts) for part in parts])
    begins = counts.cumsum() - counts
    corners = sorted_tiles[tile][:, [1, 0]]
    boxes, xyxy = boxes + np.tile(corners, 2), xyxy + np.tile(corners, 2).astype(np.float32)
    order = np.lexsort((class_id, areas, *boxes.T, *xyxy.T, tile, -confidence))
    counts = counts[order]
    firsts = np.append(0, counts.cumsum())
    strips = strips[np.arange(firsts[-1]) + np.repeat(begins[order] - firsts[:-1], counts)]
    strips += np.repeat(corners[order][:, [0, 1, 1]], counts, axis=0).astype(np.int32)
    masks = Strips(strips, firsts, boxes[order], areas[order])
    return Pieces(sorted_tiles, tile[order], masks, xyxy[order], confidence[order], class_id[order])


def merge_pieces(pieces: Pieces, size_hw: tuple[int, int], most: int) -> Merged:
    """Merge pieces of a frame of (height, width) into at most so many things."""
    masks, tiles, tile = pieces.masks, pieces.tiles, pieces.tile
    members = np.argsort(tile, kind="stable")
    tile_firsts = np.searchsorted(tile[members], np.arange(len(tiles) + 1))
    pairs = compare(*masks[:3], pieces.class_id, members, tile_firsts, tiles)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    by_iou = np.argsort(-pairs[:, 2] / (pairs[:, 3] + pairs[:, 4] - pairs[:, 2]), kind="stable")
    is_cut, is_judged = _find_cut(masks.boxes, tile, tiles, size_hw)
    confidence = pieces.confidence.copy()
    groups = group(pairs, by_iou, masks.areas, is_cut, is_judged, tile, AGREES, confidence)
    members = np.argsort(groups, kind="stable")[np.count_nonzero(groups < 0) :]
    heads, begins = np.unique(groups[members], return_index=True)
    ends = np.append(begins[1:], len(members))
    lows, highs = (
        extreme.reduceat(pieces.xyxy[members, part], begins)
        for extreme, part in ((np.minimum, slice(2)), (np.maximum, slice(2, 4)))
    )
    order = np.argsort(-confidence[heads], kind="stable")[:most]
    heads, united = heads[order], unite(masks, members, begins[order], ends[order])
    return Merged(united, np.hstack([lows, highs])[order], confidence[heads], pieces.class_id[heads])


def _find_cut(boxes: Ints, tile: Ints, tiles: Ints, size_hw: tuple[int, int]) -> tuple[NDArray[np.bool_], ...]:
    """Which pieces inner borders of their tiles cut, and of which the full image and overlaps would show the whole."""
    starts, ends = tiles[:, [1, 0]], tiles[:, [1, 0]] + tiles[:, [3, 2]]
    is_before, is_behind = boxes[:, :2] <= starts[tile], boxes[:, 2:] >= ends[tile]
    cuts = (is_before & (starts > 0)[tile]) | (is_behind & (ends < size_hw[::-1])[tile])  # across x and y
    cuts &= boxes[:, 2:] > boxes[:, :2]  # an empty mask has its box in the corner
    is_cut = np.asarray(cuts.any(axis=1))
    if not np.array_equal(tiles[-1], (0, 0, *size_hw)):
        return is_cut, np.zeros_like(is_cut)
    sides = ends[0] - starts[0]
    overlap = [(np.diff(np.unique(starts[:-1, axis])) < sides[axis]).all() for axis in range(2)]
    return is_cut, is_cut & ~(cuts & ~np.array(overlap)).any(axis=1)


def to_runs(masks: Strips, size_hw: tuple[int, int]) -> Runs:
    """The runs of masks in an image of (height, width)."""
    spans, firsts = np.empty((len(masks.strips), 2), np.int64), np.zeros_like(masks.firsts)
    write_spans(masks.strips, masks.firsts, size_hw[0], spans, firsts)
    return Runs(size_hw, spans[: firsts[-1]], firsts)
