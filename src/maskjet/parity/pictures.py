"""Images on which two variants differ, with the detections of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.parity.check import ChangedImage
from maskjet.parity.dump import Dump
from maskjet.parity.images import Images, digest, streets_from
from maskjet.parity.pair import KINDS, DifferenceKind

Image = NDArray[np.uint8]

ONLY_EXPECTED, ONLY_ACTUAL = (255, 64, 64), (64, 160, 255)
"""RGB colours of what the expected variant only, and the actual variant only, has found."""
FRAMED: Mapping[DifferenceKind, tuple[int, int, int]] = {
    "dropped": ONLY_EXPECTED,
    "added": ONLY_ACTUAL,
    "class swapped": (255, 200, 0),
}
"""RGB colours of frames around detections without a counterpart."""


@dataclass(frozen=True, eq=False)
class Found:
    """An image on which two variants differ, with the detections of both."""

    changed: ChangedImage
    """The image's name and differences."""
    image: Image
    """uint8 [H, W, 3], RGB."""
    expected: Detections
    """The detections of the reference."""
    actual: Detections
    """The detections of the variant compared with it."""
    kinds: Sequence[DifferenceKind] = KINDS
    """The kinds of difference to show."""


def find_worst(
    worst: Sequence[ChangedImage],
    expected: Dump,
    actual: Dump,
    images: Images | None = None,
    kinds: Sequence[DifferenceKind] = KINDS,
) -> Iterator[Found]:
    """Read the images that differ most between two dumps (`rank_images`), with their differences.

    The images must be given, except for generated streets.

    Raises:
        SourceError: The images can't be read.
        InputError: The images are not given, or are not those of the dumps, pixel for pixel.
    """
    if images is None:
        images = streets_from(expected.images, len(expected.names))
    for changed in worst:
        image = images.find(changed.number, changed.name)
        one, other = expected.found[changed.number], actual.found[changed.number]
        if image.shape[:2] != one.image_size or digest(image) != expected.digests[changed.number]:
            raise InputError(
                f"the images must be those of the dump, number {changed.number}, {changed.name!r}, has other pixels."
            )
        yield Found(changed, image, one, other, kinds)


def cover(found: Detections) -> NDArray[np.bool_]:
    """Pixels that any mask covers, bool [H, W]; without masks, those of the boxes' outlines."""
    canvas = coco_rle.to_runs(found.rle or (), found.image_size).unite()
    if found.rle is None:
        for left, top, right, bottom in np.rint(found.xyxy).astype(int).tolist():
            cv2.rectangle(canvas, (left, top), (right, bottom), 1)
    return canvas.view(np.bool_)
