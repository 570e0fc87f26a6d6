"""Regions to redact: unions of masks, grown by a margin and held for some frames."""

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
"""uint8 [H, W]: 1 inside, 0 outside; one value per pixel or per square of pixels."""


def pick(detections: Instances, classes: Sequence[str] | None) -> Instances:
    """Select detections by class names, None for all; raises InputError for a name the model does not know."""
    if classes is None:
        return detections
    ids = detections.class_id.tolist()
    names = [detections.class_names.get(class_id, str(class_id)) for class_id in ids]
    # Detections from JSON list only the classes found, so a missing name there is no error.
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
    """The union of all masks; a square of `square` × `square` pixels is inside if any of its pixels is.

    A detection without a mask, or with an empty one, counts with its box; InputError if that is not finite.
    """
    masks = coco_rle.to_runs(detections.rle or (), detections.image_size)
    region = masks.unite(square)
    is_empty = np.diff(masks.firsts) == 0
    for i in range(len(detections)) if detections.rle is None else np.flatnonzero(is_empty).tolist():
        _fill_box(region, detections.xyxy[i] / square, i)
    return region


def grow(region: Region, margin: int) -> Region:
    """Dilate a region by `margin` rows and columns in all directions."""
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
    """A source's region in which pixels stay for `hold` more frames, up to 254, after they were last inside.

    Where the size of frames changes, all pixels stay for as long as any would have.
    """

    def __init__(self, hold: int) -> None:
        self._hold = hold
        self._left = np.empty((0, 0), np.uint8)  # remaining frames of each pixel, this one included

    def add_to(self, region: Region) -> None:
        """Add the held pixels to the next frame's region, in place."""
        if self._left.shape != region.shape:
            self._left = np.full_like(region, self._left.max(initial=0))
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


@compiled("void(uint8[:, ::1], uint8[:, ::1], int64)")
def count_down(region: Region, left: NDArray[np.uint8], most: int) -> None:
    """Reset counts to `most` inside the region, decrement the others; add pixels with counts to the region."""
    inside, counts, top = region.reshape(region.size), left.reshape(region.size), np.uint8(most)
    for i in range(region.size):
        counts[i] = top if inside[i] else np.uint8(counts[i] - np.uint8(counts[i] > 0))
        inside[i] = np.uint8(counts[i] > 0)
