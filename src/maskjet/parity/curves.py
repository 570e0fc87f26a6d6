"""Precision-recall curves as pictures."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.drawing.shades import class_colour
from maskjet.parity.scoring import ClassScore
from maskjet.printing import sanitise

_SIZE_WH = (1200, 800)
_LEFT, _TOP, _RIGHT, _BOTTOM = 90, 60, 850, 730  # of the axes
_PAPER, _INK, _GRID, _OTHERS = (255, 255, 255), (24, 28, 32), (225, 228, 232), (190, 196, 202)
_NAMED = 20  # curves with a colour and a name of their own, those of the most things
_SHIFT = 4  # bits of OpenCV's fractions of pixels
TITLES = {"bbox": "boxes", "segm": "masks"}
"""The kinds in words, as in titles and names of files."""


def draw_curves(measurements: Sequence[ClassScore]) -> NDArray[np.uint8]:
    """Draw the precision-recall curves of one kind at IoU 0.5, uint8 [800, 1200, 3], RGB.

    Args:
        measurements: All classes together, which is drawn in black, then the classes.
    """
    canvas = np.full((*_SIZE_WH[::-1], 3), _PAPER, np.uint8)
    _draw_axes(canvas, f"Precision and recall of {TITLES[measurements[0].kind]} at IoU 0.5")
    mean, *classes = measurements
    drawn = sorted((m for m in classes if m.curve), key=lambda m: -m.things)
    colours = {id(m): class_colour(number) for number, m in enumerate(drawn[:_NAMED])}
    for m in reversed(drawn):
        _draw_curve(canvas, m.curve, colours.get(id(m), _OTHERS), 2)
    if mean.curve:
        _draw_curve(canvas, mean.curve, _INK, 4)
    named = [(mean, _INK, "all classes, mean"), *((m, colours[id(m)], m.class_name or "") for m in drawn[:_NAMED])]
    for line, (m, colour, name) in enumerate(named):
        y = _TOP + 16 + 30 * line
        cv2.line(canvas, (_RIGHT + 30, y), (_RIGHT + 60, y), colour, 4 if line == 0 else 2, cv2.LINE_AA)
        ap = m.metrics["ap50"]
        _write(canvas, f"{sanitise(name, 20)} {'-' if ap is None else format(ap, '.3f')}", (_RIGHT + 70, y + 5))
    if len(drawn) > _NAMED:
        _write(canvas, f"and {len(drawn) - _NAMED} more, in grey", (_RIGHT + 70, _TOP + 21 + 30 * len(named)))
    return canvas


def _draw_axes(canvas: NDArray[np.uint8], title: str) -> None:
    for tenth in range(0, 11, 2):
        x, y = _LEFT + (_RIGHT - _LEFT) * tenth // 10, _BOTTOM - (_BOTTOM - _TOP) * tenth // 10
        cv2.line(canvas, (x, _TOP), (x, _BOTTOM), _GRID, 1)
        cv2.line(canvas, (_LEFT, y), (_RIGHT, y), _GRID, 1)
        _write(canvas, f"{tenth / 10:g}", (x - 12, _BOTTOM + 24))
        _write(canvas, f"{tenth / 10:g}", (_LEFT - 40, y + 5))
    cv2.rectangle(canvas, (_LEFT, _TOP), (_RIGHT, _BOTTOM), _INK, 1)
    _write(canvas, title, (_LEFT, _TOP - 20), 0.7)
    _write(canvas, "recall", ((_LEFT + _RIGHT) // 2 - 25, _BOTTOM + 50))
    upright = np.full((100, 30, 3), _PAPER, np.uint8).transpose(1, 0, 2).copy()
    _write(upright, "precision", (5, 20))
    canvas[(_TOP + _BOTTOM) // 2 - 50 :][:100, 10:40] = upright.transpose(1, 0, 2)[::-1]
    _write(canvas, "AP at IoU 0.5", (_RIGHT + 70, _TOP - 20))


def _draw_curve(canvas: NDArray[np.uint8], curve: Sequence[float], colour: tuple[int, int, int], width: int) -> None:
    recall = np.linspace(_LEFT, _RIGHT, len(curve))
    points = np.stack([recall, _BOTTOM - (_BOTTOM - _TOP) * np.asarray(curve)], axis=1)
    fixed = np.rint(points * 2**_SHIFT).astype(np.int32)
    cv2.polylines(canvas, [fixed], False, colour, width, cv2.LINE_AA, _SHIFT)


def _write(canvas: NDArray[np.uint8], text: str, corner: tuple[int, int], scale: float = 0.55) -> None:
    cv2.putText(canvas, text, corner, cv2.FONT_HERSHEY_SIMPLEX, scale, _INK, 1, cv2.LINE_AA)
