"""Labels of instances: texts, and placement without overlap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.drawing.instances import Instances
from maskjet.drawing.shades import letters_on
from maskjet.drawing.style import DrawStyle, Measures
from maskjet.drawing.templates import parse_template
from maskjet.jit import Ints, compiled

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_LONGEST_NAME = 60  # characters of a class name that are drawn
_SHORTEST_NAME = 4  # fewest characters kept when a name is cut
_NAME = "\0"  # placeholder for the name: templates have only printable characters
_USUAL_WIDTH = 0.2  # share of the image's width to which names are cut

Rectangles = NDArray[np.int64]


@dataclass(frozen=True)
class Label:
    """A label: text and position."""

    instance: int
    """Index of the labelled detection; -1 for none."""
    text: str
    """Text to draw: printable, not empty."""
    plate: tuple[int, int, int, int]
    """Background rectangle: left, top, right, bottom in pixels, right and bottom exclusive, inside the image."""


def arrange_labels(detections: Instances, frames: Rectangles, *, style: DrawStyle, measures: Measures) -> list[Label]:
    """Choose texts and places of labels without overlap; labels that find no place are left out.

    Large boxes choose first, which in video is calmer than by confidence: on 120 frames of two demo videos 6.5 % of the
    labels change their place from one frame to the next, against 7.6 %. `frames` are int64 [n, 4], boxes as drawn.
    """
    height, width = detections.image_size
    room = width - 2 * measures.pad
    fitted = [_fit(*parts, room, measures) for parts in _texts(detections, style)]
    sizes = np.array([(text_width + 2 * measures.pad if text else 0) for text, text_width in fitted], np.int64)
    sides = frames[:, 2:] - frames[:, :2]
    order = np.argsort(-sides.prod(axis=1), kind="stable")
    plates = np.empty((len(frames), 4), np.int64)
    high = _plate_height(measures)
    place_plates(frames, sizes, order, high, height, width, measures.line, plates)
    found = zip(fitted, plates.tolist(), strict=True)
    return [
        Label(i, text, (x, y, right, bottom)) for i, ((text, _), (x, y, right, bottom)) in enumerate(found) if x >= 0
    ]


def place_label(text: str, middle: NDArray[np.floating], size_hw: tuple[int, int], measures: Measures) -> Label | None:
    """Place a text without an instance around a point (x, y), inside the image; None if it does not fit."""
    size = np.array([_width(text := _drawable(text), measures) + 2 * measures.pad, _plate_height(measures)])
    room = np.array(size_hw[::-1]) - size
    if (room < 0).any():
        return None
    left, top = np.rint(middle - size / 2).clip(0, room).astype(int).tolist()
    return Label(-1, text, (left, top, left + int(size[0]), top + int(size[1])))


def write_label(canvas: NDArray[np.uint8], label: Label, colour: tuple[int, ...], measures: Measures) -> None:
    """Write a label's text on its plate, which has this colour."""
    left, top, _, _ = label.plate
    start = left + measures.pad, top + _letters(measures)[0] + measures.pad // 8
    letters = letters_on(colour)
    cv2.putText(canvas, label.text, start, _FONT, measures.font_scale, letters, measures.weight, cv2.LINE_AA)


def _plate_height(measures: Measures) -> int:
    return sum(_letters(measures)) + max(measures.pad // 4, 1)


@lru_cache
def _letters(measures: Measures) -> tuple[int, int]:
    """Height of letters above and below the base line, the same for every text."""
    (_, above), below = cv2.getTextSize("Ag", _FONT, measures.font_scale, measures.weight)
    return above, below


def _texts(detections: Instances, style: DrawStyle) -> list[tuple[str, str, str]]:
    """Split the text of each label into name ("" if not shown), text before and text after."""
    words, forms, texts = parse_template(style.template), {}, []
    ids = [-1] * len(detections) if detections.track_id is None else detections.track_id.tolist()
    columns = detections.class_name.tolist(), detections.confidence.tolist(), ids, detections.class_id.tolist()
    for name, score, number, class_id in zip(*columns, strict=True):
        lacks = not math.isfinite(score), number < 0
        if lacks not in forms:
            missing = {*compress(("confidence", "track"), lacks)}
            forms[lacks] = " ".join(word for word, fields in words if missing.isdisjoint(fields))
        written = forms[lacks].format(name=_NAME, confidence=score, track=number, class_id=class_id)
        before, has_name, after = written.partition(_NAME)
        shown = _drawable(name) if has_name else ""
        texts.append((shown, before, after.replace(_NAME, shown)))
    return texts


def _drawable(name: str) -> str:
    """Make a class name drawable: cut it, and replace unprintable characters, which could crash OpenCV, by "?"."""
    shown = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    return shown if shown.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in shown)


@lru_cache(maxsize=4096)
def _fit(name: str, before: str, after: str, room: int, measures: Measures) -> tuple[str, int]:
    """Fit a text into `room` pixels, its name cut or left out; returns it and its width, "" and 0 if wider."""
    text = f"{before}{name}{after}".strip()
    width = _width(text, measures)
    kept = len(name)
    while kept > _SHORTEST_NAME and width > _USUAL_WIDTH * room:
        kept = max(min(kept - 1, int(kept * _USUAL_WIDTH * room / width) + 1), _SHORTEST_NAME)
        text = f"{before}{name[:kept].rstrip(' …')}…{after}".strip()
        width = _width(text, measures)
    if width > room:
        text = f"{before}{after}".strip()
        width = _width(text, measures)
    return (text, width) if width <= room else ("", 0)


def _width(text: str, measures: Measures) -> int:
    return int(cv2.getTextSize(text, _FONT, measures.font_scale, measures.weight)[0][0]) if text else 0


@compiled(
    "void(Array(int64, 2, 'C', True), Array(int64, 1, 'C', True), Array(int64, 1, 'C', True),"
    " int64, int64, int64, int64, int64[:, ::1])"
)
def place_plates(
    frames: Rectangles, widths: Ints, order: Ints, high: int, height: int, width: int, gap: int, out: Rectangles
) -> None:
    """Place labels greedily, each at the cheapest of twelve places about its box that is free of earlier labels.

    Above comes first, then below, inside and beside. Covering boxes costs, above all if most of a box is hidden. The
    size is the image's, `widths` are the labels', 0 for none, and `gap` is kept free between two. `out` is int64 [n, 4]
    as left, top, right, bottom; all -1 if there is no place.
    """
    out[:] = -1
    for i in order:
        wide = widths[i]
        if wide == 0 or wide > width or high > height:
            continue
        left, top, right, bottom = frames[i]
        flush, beside = right - wide, left - wide  # x of a label right-aligned with the box, and of one to its left
        above, low = top - high, bottom - high
        xs = (left, flush, left, left, flush, right, beside, flush, left, right, beside, flush)
        ys = (above, above, bottom, top, bottom, top, top, top, low, low, low, low)
        least = np.inf
        for place in range(12):
            x, y = min(max(xs[place], 0), width - wide), min(max(ys[place], 0), height - high)
            cost = 0.08 * place
            for j in range(len(frames)):
                if (
                    out[j, 0] >= 0
                    and j != i
                    and min(x + wide, out[j, 2]) - max(x, out[j, 0]) > -gap
                    and min(y + high, out[j, 3]) - max(y, out[j, 1]) > -gap
                ):
                    cost = np.inf
                    break
                across = min(x + wide, frames[j, 2]) - max(x, frames[j, 0])
                down = min(y + high, frames[j, 3]) - max(y, frames[j, 1])
                if across > 0 and down > 0:
                    box = (frames[j, 2] - frames[j, 0]) * (frames[j, 3] - frames[j, 1])
                    cost += 0.1 * across * down / (wide * high) + 1.2 * (across * down / box) ** 2
            if cost < least:
                least = cost
                out[i, 0], out[i, 1], out[i, 2], out[i, 3] = x, y, x + wide, y + high
