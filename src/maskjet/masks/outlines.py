"""Polygons around the connected parts of a mask."""

from __future__ import annotations

import math
from typing import Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.checks import check_choice
from maskjet.errors import InputError

Along = Literal["centers", "edges"]
"""Course of outlines: through the centres of border pixels, as in OpenCV; or along their outer edges."""
Line = NDArray[np.float32]
_FARTHEST = 1e6  # pixels; replaces larger tolerances, some of which OpenCV refuses
_EXACT = 0.1  # pixels; at smaller tolerances all corners are kept


def trace(mask: NDArray[np.uint8], tolerance: float = 0.0, along: Along = "centers") -> list[Line]:
    """The outlines of the 8-connected parts of a mask, uint8 [H, W], without holes; see `coco_rle.polygons`."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise InputError(f"tolerance must be a number of pixels, at least 0, got {tolerance!r}.")
    check_choice("along", along, get_args(Along))
    if along == "edges":
        mask = mask.repeat(2, axis=0).repeat(2, axis=1)
    traced, hierarchy = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    found = []
    for i in range(len(traced)):
        if hierarchy[0, i, 3] < 0:  # no hole, as it has no parent
            line = np.asarray(traced[i][:, 0], np.int32)
            found.append(_simplify(_to_edges(line) if along == "edges" else line, tolerance))
    return found


def _to_edges(line: NDArray[np.int32]) -> NDArray[np.int32]:
    """Convert a contour of the mask at double size to one along pixel edges, corners only.

    Its points are in the pixels' quarters. OpenCV steps diagonally only over a corner that both quarters touch.
    """
    corners = (line + 1) // 2
    corners = corners[(corners != np.roll(corners, 1, axis=0)).any(axis=1)]
    steps = np.sign(corners - np.roll(corners, 1, axis=0))
    return np.asarray(corners[(steps != np.roll(steps, -1, axis=0)).any(axis=1)])


def _simplify(line: NDArray[np.int32], tolerance: float) -> Line:
    """Simplify by Douglas-Peucker; the tolerance is halved until at least a triangle is left."""
    tolerance = min(tolerance, _FARTHEST)
    while tolerance >= _EXACT:
        simple = cv2.approxPolyDP(line, tolerance, closed=True)[:, 0]
        if len(simple) > 2:
            return np.asarray(simple, np.float32)
        tolerance /= 2
    return np.resize(line, (max(len(line), 3), 2)).astype(np.float32)  # repeats points, as readers expect three
