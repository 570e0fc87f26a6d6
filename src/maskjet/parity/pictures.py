"""Pictures of the images on which two variants differ most: differences marked, and a close-up of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from maskjet.parity.pair import Difference, DifferenceKind, box_iou
from maskjet.parity.record import ImageRecord

ONLY_EXPECTED, ONLY_ACTUAL = (255, 64, 64), (64, 160, 255)
"""RGB colours of what only the expected variant, and only the actual one, has found."""
FRAMED: Mapping[DifferenceKind, tuple[int, int, int]] = {
    "dropped": ONLY_EXPECTED,
    "added": ONLY_ACTUAL,
    "class swapped": (255, 200, 0),
}
"""RGB colours of frames around detections without a counterpart."""
PICTURES_BYTES = 690_000
"""Byte limit of all pictures of a page: 920 kB in base64, which leaves 80 kB of a megabyte for text."""
_OVERVIEW_SIDE = 1600  # longest side of an overview, in pixels
_OVERVIEW_WEIGHT = 4  # bytes of an overview, relative to a close-up
_CLOSE_UPS, _CLOSE_UPS_PER_IMAGE = 36, 6
_NUMBERED = 12  # listed detections per image
_PANEL_WH = (400, 300)  # size of a close-up's panel, in pixels
_GAP = 8  # gap between panels, in pixels
_MARGIN = 1.5  # a close-up's side, in sides of the detection's box
_CLOSEST = 48  # least width of a close-up, in pixels of the image
_SQUARES = 4  # enlarged by more than this, pixels are shown as squares
_SHADE = (38, 42, 48)  # colour outside the image
_OTHER, _INK = (255, 255, 255), (20, 24, 28)
_CONCERNED = 0.3  # box IoU with the difference's box from which a detection is drawn in full
_QUALITIES = (82, 70, 55, 40)  # WebP qualities to try, before shrinking the picture
_SMALLEST = 16  # smallest longer side of a picture, in pixels
_FAR = 2**14  # pixels; OpenCV's line drawing covers only part of its integers' range

Image = NDArray[np.uint8]
Box = tuple[float, float, float, float]
Region = tuple[int, int, int, int]  # left, top, width, height
Mask = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class DifferingImage:
    """An image on which two variants differ, with the detections of both."""

    changed: ChangedImage
    """The image's name and differences."""
    image: Image
    """uint8 [H, W, 3], RGB."""
    expected: Detections
    """The detections of the reference."""
    actual: Detections
    """The detections of the variant compared with it."""


@dataclass(frozen=True)
class CloseUp:
    """A detection that differs between two variants, with pictures."""

    number: int
    """Number of the detection in the overview, from 1."""
    detection: str
    """`Difference.detection`."""
    differences: Sequence[Difference]
    """All differences of the detection beyond rounding."""
    picture: bytes | None
    """WebP: expected, actual and differing pixels side by side; None for differences beyond the limit."""


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


def open_worst(
    worst: Iterable[tuple[ChangedImage, ImageRecord, ImageRecord]], images: Iterable[Image]
) -> Iterator[DifferingImage]:
    """Join the images that differ most, read one by one, with what was expected and found on them.

    Raises:
        InputError: An image is not that of the records, pixel for pixel.
    """
    for (changed, one, other), image in zip(worst, images, strict=True):
        if image.shape[:2] != one.found.image_size or digest(image) != one.digest:
            raise InputError(f"images must be those of the records, {changed.name!r} has other pixels.")
        yield DifferingImage(changed, image, one.found, other.found)


def draw_close_ups(worst: Iterable[DifferingImage], count: int) -> list[WorstImage]:
    """Draw `count` images that `open_worst` gives, within `PICTURES_BYTES` together.

    Every picture gets a share of the bytes that are left. Bytes that it doesn't need are left to those after it.
    """
    most = min(_CLOSE_UPS // max(count, 1), _CLOSE_UPS_PER_IMAGE)
    weight = count * (_OVERVIEW_WEIGHT + most)
    left = PICTURES_BYTES
    drawn = []

    def shrink(picture: Image, share: int) -> bytes:
        nonlocal left, weight
        data = shrink_to(picture, left * share // weight)
        left, weight = left - len(data), weight - share
        return data

    for found in worst:
        groups = _by_detection(found)
        shown = groups[:_NUMBERED]
        only = _find_one_sided(found)
        overview = shrink(_draw_overview(found, only, shown), _OVERVIEW_WEIGHT)
        close_ups = []
        for number, group in enumerate(shown, 1):
            picture = shrink(_draw_close_up(found, only, group[0].xyxy), 1) if number <= most else None
            close_ups.append(CloseUp(number, group[0].detection, group, picture))
        weight -= max(most - len(shown), 0)
        drawn.append(WorstImage(found.changed.name, overview, close_ups, len(groups) - len(shown)))
    return drawn


def shrink_to(picture: Image, most: int) -> bytes:
    """Encode a picture, RGB, as WebP of at most `most` bytes: at lower quality, then smaller, down to 16 pixels."""
    while True:
        for quality in _QUALITIES:
            data = encode(picture, ".webp", quality)
            if len(data) <= most:
                return data
        height, width = picture.shape[:2]
        if max(height, width) <= _SMALLEST:
            return data
        factor = max(min(0.9 * (most / len(data)) ** 0.5, 0.9), _SMALLEST / max(height, width))
        picture = _resize(picture, (max(int(width * factor), 1), max(int(height * factor), 1)))


def _by_detection(found: DifferingImage) -> list[list[Difference]]:
    """Group differences by detection, the worst detection first."""
    groups: dict[tuple[str, Box], list[Difference]] = {}
    for difference in found.changed.differences:
        groups.setdefault((difference.detection, difference.xyxy), []).append(difference)
    return sorted(groups.values(), key=severity, reverse=True)


def _draw_overview(found: DifferingImage, only: Sequence[Mask], groups: Sequence[Sequence[Difference]]) -> Image:
    """Dim the image, colour pixels covered by one variant only, and number the differing detections."""
    height, width = found.image.shape[:2]
    scale = _OVERVIEW_SIDE / max(height, width)
    if scale > 1:
        scale = max(int(scale), 1)  # an integer, so that every pixel becomes a square
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    canvas = _dim(_resize(found.image, size))
    for mask, colour in zip(only, (ONLY_EXPECTED, ONLY_ACTUAL), strict=True):
        _blend(canvas, colour, _strengthen(_resize(mask, size)))
    boxes = np.array([group[0].xyxy for group in groups], np.float32).reshape(-1, 4) * np.float32(scale)
    names = {number: str(number) for number in range(1, len(groups) + 1)}
    numbered = Detections(
        image_size=size[::-1],
        xyxy=boxes.clip(0, np.array(size * 2, np.float32)),
        confidence=np.ones(len(groups), np.float32),
        class_id=np.arange(1, len(groups) + 1, dtype=np.int32),
        class_names=names,
    )
    colours = (FRAMED.get(group[0].kind, _OTHER) for group in groups)
    palette = {name: bytes(colour).hex() for name, colour in zip(names.values(), colours, strict=True)}
    return numbered.draw(canvas, label="{name}", palette=palette)


def _draw_close_up(found: DifferingImage, only: Sequence[Mask], box: Box) -> Image:
    """Draw the surroundings of a box three times: the expected detections, the actual ones, and how they differ."""
    region = _surround(box, found.image.shape[:2])
    crop = _scale_region(found.image, region, outside=_SHADE, enlarge=cv2.INTER_CUBIC)
    panels = [crop.copy(), crop.copy(), _dim(crop)]
    sides = (found.expected, found.actual)
    for panel, side, mask, colour in zip(panels, sides, only, (ONLY_EXPECTED, ONLY_ACTUAL), strict=False):
        _draw_detections(panel, side, region, box, colour)
        _blend(panels[2], colour, _strengthen(_scale_region(mask, region)))
    _draw_moved(panels[2], found, region, box)
    width, height = _PANEL_WH
    sheet = np.full((height, 3 * width + 2 * _GAP, 3), _SHADE, np.uint8)
    for number, panel in enumerate(panels):
        sheet[:, number * (width + _GAP) :][:, :width] = panel
    return sheet


def _surround(box: Box, size_hw: tuple[int, ...]) -> Region:
    """A box with a margin, in a panel's aspect, moved into the image where it fits."""
    aspect = _PANEL_WH[0] / _PANEL_WH[1]
    size_wh = size_hw[::-1]
    lows, highs = np.clip(np.reshape(box, (2, 2)), 0, size_wh).tolist()
    width, height = (_MARGIN * (high - low) for low, high in zip(lows, highs, strict=True))
    width = max(width, height * aspect, _CLOSEST)
    sides = round(width), max(round(width / aspect), 1)
    left, top = map(center, lows, highs, sides, size_wh)
    return left, top, *sides


def _scale_region(
    image: NDArray[np.uint8],
    region: Region,
    *,
    corner: tuple[int, int] = (0, 0),
    outside: int | tuple[int, int, int] = 0,
    enlarge: int = cv2.INTER_NEAREST,
) -> NDArray[np.uint8]:
    """Scale a region of an image, or of a crop whose upper left corner is at `corner`, to a panel."""
    panel = np.full((*_PANEL_WH[::-1], *image.shape[2:]), outside, np.uint8)
    source, target = [], []
    for axis in (1, 0):  # rows, then columns
        start, side, length = region[axis], region[axis + 2], _PANEL_WH[axis]
        low, high = max(corner[axis], start), min(corner[axis] + image.shape[1 - axis], start + side)
        if low >= high:
            return panel
        first = min(round((low - start) * length / side), length - 1)
        last = max(round((high - start) * length / side), first + 1)
        source.append(slice(low - corner[axis], high - corner[axis]))
        target.append(slice(first, last))
    rows, columns = target
    size = columns.stop - columns.start, rows.stop - rows.start
    panel[rows, columns] = _resize(image[tuple(source)], size, enlarge)
    return panel


def _draw_detections(panel: Image, found: Detections, region: Region, box: Box, colour: tuple[int, int, int]) -> None:
    """Draw a region's detections into a panel: in full if they overlap the box, else only mask outlines.

    Without labels, which would hide what is small.
    """
    boxes, is_concerned = _place_boxes(found, region), _overlaps(found, box)
    is_near = (boxes[:, 2:] >= 0).all(axis=1) & (boxes[:, :2] <= _PANEL_WH).all(axis=1)
    for i in sorted(np.flatnonzero(is_near), key=lambda i: (is_concerned[i], -i)):
        if found.rle is not None:
            x, y, crop = coco_rle.decode_crop(found.rle[i])
            mask = _scale_region(crop, region, corner=(x, y))
            _blend(panel, colour, mask * np.float32(0.4 if is_concerned[i] else 0.1))
            outlines, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
            if is_concerned[i]:  # on a dark line, which shows on any background
                cv2.drawContours(panel, outlines, -1, _INK, 4, cv2.LINE_AA)
            cv2.drawContours(panel, outlines, -1, colour, 1 + is_concerned[i], cv2.LINE_AA)
        if is_concerned[i] or found.rle is None:
            left, top, right, bottom = boxes[i].tolist()
            cv2.rectangle(panel, (left, top), (right, bottom), colour, 1 + is_concerned[i], cv2.LINE_AA)


def _draw_moved(panel: Image, found: DifferingImage, region: Region, box: Box) -> None:
    """Draw the boxes of either variant that overlap a box and have moved."""
    one, other = (
        {tuple(each) for each in _place_boxes(side, region)[_overlaps(side, box)].tolist()}
        for side in (found.expected, found.actual)
    )
    for moved, colour in ((one - other, ONLY_EXPECTED), (other - one, ONLY_ACTUAL)):
        for left, top, right, bottom in moved:
            cv2.rectangle(panel, (left, top), (right, bottom), colour, 2)


def _place_boxes(found: Detections, region: Region) -> NDArray[np.int64]:
    """Boxes in the pixels of a panel that shows a region: int64 [n, 4]."""
    left, top, width, height = region
    scale = np.array([_PANEL_WH[0] / width, _PANEL_WH[1] / height] * 2)
    boxes = (found.xyxy - np.array([left, top] * 2)) * scale
    return np.asarray(np.rint(boxes.clip(-_FAR, _FAR)), np.int64)


def _overlaps(found: Detections, box: Box) -> NDArray[np.bool_]:
    """Whether each detection overlaps a box: bool [n]."""
    return np.asarray(box_iou(found.xyxy, np.array([box], np.float32))[:, 0] >= _CONCERNED)


def _find_one_sided(found: DifferingImage) -> tuple[Mask, Mask]:
    """Pixels that only the expected detections cover, and only the actual ones: 255 where they do."""
    one, other = _cover(found.expected), _cover(found.actual)
    return (one & ~other) * np.uint8(255), (other & ~one) * np.uint8(255)


def _cover(found: Detections) -> NDArray[np.bool_]:
    """Pixels that any mask covers, bool [H, W]; without masks, those of the boxes' outlines."""
    canvas = coco_rle.to_runs(found.rle or (), found.image_size).unite()
    if found.rle is None:
        for left, top, right, bottom in np.rint(found.xyxy).astype(int).tolist():
            cv2.rectangle(canvas, (left, top), (right, bottom), 1)
    return canvas.view(np.bool_)


def _strengthen(mask: Mask) -> NDArray[np.float32]:
    """Opacity of a mask that was made smaller, 0..1; doubled, so that thin lines stay visible."""
    return np.asarray(np.minimum(mask * np.float32(2 / 255), 1), np.float32)


def _blend(canvas: Image, colour: tuple[int, int, int], share: NDArray[np.float32]) -> None:
    """Mix a colour into a picture, by the share [h, w] at each pixel, 0..1."""
    touched = share > 0
    mixed = canvas[touched] + (np.array(colour, np.float32) - canvas[touched]) * share[touched][:, None]
    canvas[touched] = np.rint(mixed).astype(np.uint8)


def _dim(image: Image) -> Image:
    """Darken an image and take half of its colours away."""
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return np.asarray(cv2.addWeighted(image, 0.25, grey, 0.25, 0), np.uint8)


def _resize(image: NDArray[np.uint8], size_wh: tuple[int, int], enlarge: int = cv2.INTER_NEAREST) -> NDArray[np.uint8]:
    """Resize an image: averaged if smaller; if larger, by one of OpenCV's filters, or every pixel a square."""
    is_smaller = size_wh[0] < image.shape[1]
    if size_wh[0] > _SQUARES * image.shape[1]:
        enlarge = cv2.INTER_NEAREST
    return np.asarray(cv2.resize(image, size_wh, interpolation=cv2.INTER_AREA if is_smaller else enlarge), np.uint8)
