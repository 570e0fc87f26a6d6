"""Pictures of the images on which two variants differ most: differences marked, and close-ups of the worst."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.detections.crops import center
from maskjet.drawing.showing import encode
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.outputs.lines import digest
from maskjet.parity.check import ChangedImage, severity
from maskjet.parity.pair import Difference, DifferenceKind
from maskjet.parity.record import ImageRecord

ONLY_EXPECTED, ONLY_ACTUAL = (255, 64, 64), (64, 160, 255)
"""RGB colours of what only the expected variant, and only the actual one, has found."""
FRAMED: Mapping[DifferenceKind, tuple[int, int, int]] = {
    "dropped": ONLY_EXPECTED,
    "added": ONLY_ACTUAL,
    "class swapped": (255, 200, 0),
}
"""RGB colours of frames around detections without a counterpart."""
_OTHER = (255, 255, 255)
_OVERVIEW_SIDE = 1280  # longest side of an overview, in pixels
_CLOSE_UPS, _NUMBERED = 3, 12  # detections of an image with a close-up, and listed ones
_PANEL_SIDE, _GAP = 400, 8  # longest side of a close-up's panel, and gap between two, in pixels
_MARGIN, _CLOSEST = 1.5, 48  # a close-up's side, in sides of the detection's box, and its least in pixels
_QUALITY = 70  # of WebP

Image = NDArray[np.uint8]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class CloseUp:
    """A detection that differs between two variants."""

    number: int
    """Number of the detection in the overview, from 1."""
    detection: str
    """`Difference.detection`."""
    differences: Sequence[Difference]
    """All differences of the detection beyond rounding."""
    picture: bytes | None
    """WebP: expected, actual and what differs, side by side; None for all but the worst three of an image."""


@dataclass(frozen=True)
class WorstImage:
    """An image on which two variants differ."""

    name: str
    """The image's name in the records."""
    overview: bytes
    """WebP: the image, dimmed, with its differences coloured and numbered."""
    close_ups: Sequence[CloseUp]
    """The detections that differ, the worst first."""
    more: int
    """Number of further detections that differ."""


def draw_worst(
    worst: Iterable[tuple[ChangedImage, ImageRecord, ImageRecord]], images: Iterable[Image]
) -> list[WorstImage]:
    """Draw the images that differ most, read one by one, with what was expected and found on them.

    Raises:
        InputError: An image is not that of the records, pixel for pixel.
    """
    return [_draw(*each, image) for each, image in zip(worst, images, strict=True)]


def _draw(changed: ChangedImage, one: ImageRecord, other: ImageRecord, image: Image) -> WorstImage:
    if image.shape[:2] != one.found.image_size or digest(image) != one.digest:
        raise InputError(f"images must be those of the records, {changed.name!r} has other pixels.")
    by_detection = defaultdict(list)
    for difference in changed.differences:
        by_detection[difference.detection, difference.xyxy].append(difference)
    groups = sorted(by_detection.values(), key=severity, reverse=True)
    expected, actual = one.found, other.found
    marked = _mark(image, expected, actual)
    panels = _draw_side(image, expected, ONLY_EXPECTED), _draw_side(image, actual, ONLY_ACTUAL), marked
    close_ups = [
        CloseUp(number, group[0].detection, group, _enlarge(panels, group[0].xyxy) if number <= _CLOSE_UPS else None)
        for number, group in enumerate(groups[:_NUMBERED], 1)
    ]
    return WorstImage(changed.name, _number(marked, groups[:_NUMBERED]), close_ups, len(groups[_NUMBERED:]))


def _draw_side(image: Image, found: Detections, colour: tuple[int, int, int]) -> Image:
    """Draw one side's detections in its colour, without labels, which would hide what is small."""
    palette = dict.fromkeys(found.class_name.tolist(), bytes(colour).hex())
    return found.draw(image, label="", palette=palette, mask_pixels="raw")


def _mark(image: Image, expected: Detections, actual: Detections) -> Image:
    """Dim an image, and colour pixels that the masks of one side alone cover, and boxes that only one side has."""
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    canvas = np.asarray(cv2.addWeighted(image, 0.25, grey, 0.25, 0), np.uint8)
    sides = (expected, actual)
    covered = [coco_rle.to_runs(side.rle or (), side.image_size).unite().view(np.bool_) for side in sides]
    boxes = [{tuple(box) for box in np.rint(side.xyxy).astype(int).tolist()} for side in sides]
    for side, colour in enumerate((ONLY_EXPECTED, ONLY_ACTUAL)):
        canvas[covered[side] & ~covered[1 - side]] = colour
        for left, top, right, bottom in boxes[side] - boxes[1 - side]:
            cv2.rectangle(canvas, (left, top), (right, bottom), colour)
    return canvas


def _number(marked: Image, groups: Sequence[Sequence[Difference]]) -> bytes:
    """Number the differing detections in a marked image, resized so that they can be read."""
    scale = _OVERVIEW_SIDE / max(marked.shape)
    canvas = _resize(marked, scale)
    boxes = np.array([group[0].xyxy for group in groups], np.float32) * np.float32(scale)
    names = {number: str(number) for number in range(1, len(groups) + 1)}
    numbered = Detections(
        image_size=(canvas.shape[0], canvas.shape[1]),
        xyxy=boxes.clip(0, np.array(canvas.shape[1::-1] * 2, np.float32)),
        confidence=np.ones(len(groups), np.float32),
        class_id=np.arange(1, len(groups) + 1, dtype=np.int32),
        class_names=names,
    )
    colours = (FRAMED.get(group[0].kind, _OTHER) for group in groups)
    palette = {name: bytes(colour).hex() for name, colour in zip(names.values(), colours, strict=True)}
    return encode(numbered.draw(canvas, label="{name}", palette=palette), ".webp", _QUALITY)


def _enlarge(panels: Sequence[Image], box: Box) -> bytes:
    """Show the surroundings of a box in several pictures of an image, side by side."""
    size_wh = panels[0].shape[1::-1]
    lows, highs = np.clip(np.reshape(box, (2, 2)), 0, size_wh).tolist()
    slices = []
    for low, high, size in zip(lows, highs, size_wh, strict=True):
        side = max(round(_MARGIN * (high - low)), _CLOSEST)
        start = center(low, high, side, size)
        slices.append(slice(max(start, 0), start + side))
    crops = [panel[slices[1], slices[0]] for panel in panels]
    resized = [_resize(crop, _PANEL_SIDE / max(crop.shape)) for crop in crops]
    spaced = [np.pad(panel, ((0, 0), (0, _GAP), (0, 0))) for panel in resized]
    return encode(np.hstack(spaced)[:, :-_GAP], ".webp", _QUALITY)


def _resize(image: Image, scale: float) -> Image:
    """Resize an image: averaged if smaller, every pixel a square if larger."""
    size = [max(round(side * scale), 1) for side in image.shape[1::-1]]
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST))
