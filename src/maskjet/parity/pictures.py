"""Pictures of images on which two variants differ: the detections of each, and the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet import coco_rle
from maskjet.detections import Detections
from maskjet.drawing import DrawStyle, draw
from maskjet.drawing.showing import encode
from maskjet.errors import InputError
from maskjet.files import replacing
from maskjet.parity.check import ChangedImage, CheckReport
from maskjet.parity.dump import Dump
from maskjet.parity.images import Images, digest, streets_from
from maskjet.parity.pair import KINDS, DifferenceKind

Image = NDArray[np.uint8]

_SIDE = 480  # smallest width of a panel, in pixels
_TITLE, _GAP = 28, 4  # pixels
_PAPER, _INK = (255, 255, 255), (24, 28, 32)
ONLY_EXPECTED, ONLY_ACTUAL = (255, 64, 64), (64, 160, 255)
"""Colours, RGB, of what only one of the two variants found."""
FRAMED: Mapping[DifferenceKind, tuple[int, int, int]] = {
    "dropped": ONLY_EXPECTED,
    "added": ONLY_ACTUAL,
    "class swapped": (255, 200, 0),
}
"""Colours, RGB, of the frames around detections without a counterpart."""


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
    """Read the images that `rank` found to differ most between two dumps, and pair them with what differs.

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


def write_worst(
    folder: Path, found: CheckReport, expected: Dump, actual: Dump, images: Images | None = None
) -> list[Path]:
    """Draw the images of `find_worst` by `draw_pair`, as PNG files; returns their paths."""
    written = []
    for rank, worst in enumerate(find_worst(found.worst, expected, actual, images), 1):
        picture = draw_pair(worst, (expected.name, actual.name))
        written.append(folder / f"worst_{rank:02}.png")
        with replacing(written[-1], "folder") as temporary:
            temporary.write(encode(picture, ".png"))
    return written


def draw_pair(found: Found, names: tuple[str, str]) -> Image:
    """Draw three panels, uint8 [h, w, 3], RGB: the expected detections, the actual ones, and the differences."""
    image, expected, actual = found.image, found.expected, found.actual
    scale = max(-(-_SIDE // image.shape[1]), 1)  # an integer, so that every pixel becomes a square
    style = DrawStyle(mask_pixels="raw")  # as differences are of all pixels
    panels = [draw(image, expected, style), draw(image, actual, style), _draw_difference(image, expected, actual)]
    panels = [panel.repeat(scale, axis=0).repeat(scale, axis=1) for panel in panels]
    for difference in found.changed.differences:
        if difference.kind in FRAMED:
            left, top, right, bottom = (round(scale * value) for value in difference.xyxy)
            cv2.rectangle(panels[2], (left, top), (right, bottom), FRAMED[difference.kind], 2)
            _write(panels[2], difference.kind, (left + 3, min(bottom + 14, panels[2].shape[0] - 4)), (255, 255, 255))
    titles = (f"expected: {names[0]}", f"actual: {names[1]}", "red: only expected, blue: only actual")
    height, width = panels[0].shape[:2]
    sheet = np.full((height + _TITLE, 3 * width + 2 * _GAP, 3), _PAPER, np.uint8)
    for number, (panel, title) in enumerate(zip(panels, titles, strict=True)):
        left = number * (width + _GAP)
        sheet[_TITLE:, left : left + width] = panel
        _write(sheet[:, left : left + width], title, (4, 19), _INK)
    return sheet


def _draw_difference(image: Image, expected: Detections, actual: Detections) -> Image:
    """Darken the image and colour pixels that only one variant's masks (or else the boxes' outlines) cover."""
    dark = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB) // 3
    one, other = (cover(found) for found in (expected, actual))
    dark[one & ~other] = ONLY_EXPECTED
    dark[other & ~one] = ONLY_ACTUAL
    return np.asarray(dark, np.uint8)


def cover(found: Detections) -> NDArray[np.bool_]:
    """Pixels that any mask covers, bool [H, W]; without masks, those of the boxes' outlines."""
    canvas = coco_rle.to_runs(found.rle or (), found.image_size).unite()
    if found.rle is None:
        for left, top, right, bottom in np.rint(found.xyxy).astype(int).tolist():
            cv2.rectangle(canvas, (left, top), (right, bottom), 1)
    return canvas.view(np.bool_)


def _write(canvas: Image, text: str, corner: tuple[int, int], colour: tuple[int, int, int]) -> None:
    cv2.putText(canvas, text, corner, cv2.FONT_HERSHEY_SIMPLEX, 0.45, colour, 1, cv2.LINE_AA)
