"""Regions of a picture: the union of masks, grown by a margin, and held for some frames."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.drawing.instances import Instances
from maskjet.errors import InputError, suggest
from maskjet.jit import compiled
from maskjet.masks import coco_rle

Region = NDArray[np.uint8]
"""uint8 [H, W], 1 inside, 0 outside; of pixels or squares of pixels."""


def pick(detections: Instances, classes: Sequence[str] | None) -> Instances:
    """The detections of the classes of these names, all for None; raises InputError if their model lacks one."""
    if classes is None:
        return detections
    ids = detections.class_id.tolist()
    names = [detections.class_names.get(class_id, str(class_id)) for class_id in ids]
    # Detections read from JSON name the classes that were found alone, so that a name may only be missing in them.
    if len(detections.class_names) > len(set(ids)):
        known = {*detections.class_names.values(), *names}
        for name in classes:
            if name not in known:
                raise InputError(f"classes must be classes of the model, got {name!r}{suggest(name, sorted(known))}")
    tracks = detections.class_id if detections.track_class_id is None else detections.track_class_id
    names_of_tracks = (detections.class_names.get(class_id, str(class_id)) for class_id in tracks.tolist())
    chosen = [i for i, both in enumerate(zip(names, names_of_tracks, strict=True)) if {*both} & {*classes}]
    return detections if len(chosen) == len(ids) else detections[chosen]


def unite(detections: Instances, square: int = 1) -> Region:
    """The union of all masks, in squares with a side of so many pixels, of which any is inside.

    A detection without a mask, or with an empty one, counts with its box.

    Raises:
        InputError: A mask is malformed, or a box that counts is not finite.
    """
    masks = coco_rle.to_runs(detections.rle or (), detections.image_size)
    region = masks.unite(square)
    is_empty = np.diff(masks.firsts) == 0
    for i in range(len(detections)) if detections.rle is None else np.flatnonzero(is_empty).tolist():
        _fill_box(region, detections.xyxy[i] / square, i)
    return region


def grow(region: Region, margin: int) -> Region:
    """A region with all pixels up to `margin` rows and columns away from one inside."""
    if margin == 0 or not region.any():
        return region
    left, top, width, height = cv2.boundingRect(region)
    margin = min(margin, max(region.shape))
    rows = slice(max(top - margin, 0), top + height + margin)
    columns = slice(max(left - margin, 0), left + width + margin)
    side = 2 * margin + 1
    grown = np.zeros_like(region)
    grown[rows, columns] = cv2.dilate(region[rows, columns], np.ones((side, side), np.uint8))
    return grown


class HeldRegion:
    """A region of a source's frames that pixels leave only `hold` frames, up to 254, after they were inside last."""

    def __init__(self, hold: int) -> None:
        self._hold = hold
        self._left: NDArray[np.uint8] | None = None  # frames for which each pixel stays inside, this one included

    def add_to(self, region: Region) -> None:
        """Add to the next frame's own region the pixels that are held."""
        if self._left is None:
            self._left = np.zeros_like(region)
        elif self._left.shape != region.shape:
            self._left = stretch(self._left, region.shape)
        count_down(region, self._left, self._hold + 1)


def _fill_box(region: Region, box: NDArray[np.float32], number: int) -> None:
    """Set all pixels that a box touches, at least one if it touches the image."""
    if not np.isfinite(box).all():
        raise InputError(f"xyxy must be finite where there is no mask, detection {number} has {box.tolist()}.")
    low, high = np.sort(box.astype(np.float64).reshape(2, 2), axis=0)
    size = np.array(region.shape[::-1])
    if (high < 0).any() or (low > size).any():
        return
    left, top = np.minimum(np.floor(low.clip(0)), size - 1).astype(int).tolist()
    right, bottom = np.maximum(np.ceil(high.clip(max=size)), (left + 1, top + 1)).astype(int).tolist()
    region[top:bottom, left:right] = 1


def stretch(left: NDArray[np.uint8], size_hw: tuple[int, ...]) -> NDArray[np.uint8]:
    """Counts for a frame of another size: each of its pixels gets the most of those that it touches."""
    if not left.size or 0 in size_hw:
        return np.zeros(size_hw, np.uint8)
    for axis, side in enumerate(size_hw):
        first = np.arange(side) * left.shape[axis] // side
        last = (np.arange(1, side + 1) * left.shape[axis] - 1) // side
        left = np.max([left.take(np.minimum(first + k, last), axis) for k in range(max(last - first) + 1)], axis=0)
    return left


@compiled("void(uint8[:, ::1], uint8[:, ::1], int64)")
def count_down(region: Region, left: NDArray[np.uint8], most: int) -> None:
    """Set the counts of pixels inside to `most`, lower the others by one, and add those not at 0 to the region."""
    inside, counts, top = region.reshape(region.size), left.reshape(region.size), np.uint8(most)
    for i in range(region.size):
        counts[i] = top if inside[i] else np.uint8(counts[i] - np.uint8(counts[i] > 0))
        inside[i] = np.uint8(counts[i] > 0)
