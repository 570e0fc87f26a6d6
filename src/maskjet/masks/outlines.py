"""Outlines of a mask's parts and holes as polygons."""

from __future__ import annotations

import math
from typing import Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.errors import InputError

Holes = Literal["fill", "keep", "cut"]
"""Holes in polygons: left out, so that they are filled; polygons of their own; or cut open to the part's outline."""
Along = Literal["centers", "edges"]
"""Where outlines run: through the centres of border pixels, as OpenCV draws; or along their edges, as in data sets."""
Line = NDArray[np.float32]
_FARTHEST = 1e6  # pixels: as any larger tolerance, of which OpenCV refuses some
_EXACT = 0.1  # pixels: a smaller tolerance leaves out no corner of a part of one pixel


def trace(
    mask: NDArray[np.uint8], tolerance: float = 0.0, holes: Holes = "fill", along: Along = "centers"
) -> list[Line]:
    """The outlines of the 8-connected parts of a mask, uint8 [H, W]; see `coco_rle.polygons`."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise InputError(f"tolerance must be a number of pixels, at least 0, got {tolerance!r}.")
    for name, value, known in (("holes", holes, get_args(Holes)), ("along", along, get_args(Along))):
        if value not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
    if along == "edges":
        mask = mask.repeat(2, axis=0).repeat(2, axis=1)
    traced, hierarchy = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)

    def line_of(i: int) -> Line:
        line = np.asarray(traced[i][:, 0], np.int32)
        return _simplify(_to_edges(line) if along == "edges" else line, tolerance)

    found: list[Line] = []
    for i in range(len(traced)):
        _, _, child, parent = hierarchy[0, i]
        if parent >= 0:
            continue
        own = []
        while child >= 0 and holes != "fill":
            own.append(line_of(child))
            child = hierarchy[0, child, 0]
        found += [_cut_open(line_of(i), own)] if holes == "cut" else [line_of(i), *own]
    return found


def _to_edges(line: NDArray[np.int32]) -> NDArray[np.int32]:
    """A contour of a mask of twice the size as one along the pixels' edges, with its corners alone.

    Its points are in the pixels' quarters. OpenCV steps diagonally only over a corner that both quarters touch.
    """
    corners = (line + 1) // 2
    corners = corners[(corners != np.roll(corners, 1, axis=0)).any(axis=1)]
    steps = np.sign(corners - np.roll(corners, 1, axis=0))
    return np.asarray(corners[(steps != np.roll(steps, -1, axis=0)).any(axis=1)])


def _simplify(line: NDArray[np.int32], tolerance: float) -> Line:
    """Douglas-Peucker; where that leaves less than a triangle, with half the tolerance, and so on."""
    tolerance = min(tolerance, _FARTHEST)
    while tolerance >= _EXACT:
        simple = cv2.approxPolyDP(line, tolerance, closed=True)[:, 0]
        if len(simple) > 2:
            return np.asarray(simple, np.float32)
        tolerance /= 2
    return line.astype(np.float32)


def _cut_open(line: Line, holes: list[Line]) -> Line:
    """Join holes to their part's outline: from the leftmost point of each, leftwards, a cut there and back."""
    for hole in sorted(holes, key=lambda hole: float(hole[:, 0].min())):  # so that a cut never meets a hole to come
        first = int(hole[:, 0].argmin())
        x, y = hole[first]
        (x1, y1), (x2, y2) = line.T, np.roll(line, -1, axis=0).T
        is_met = (y1 <= y) != (y2 <= y)
        met = np.where(is_met, x1 + (y - y1) * (x2 - x1) / np.where(is_met, y2 - y1, 1), np.inf)
        met[met > x] = -np.inf
        edge = int(met.argmax())
        if np.isfinite(met[edge]):  # else the hole lies outside its simplified part
            cut = np.array([[met[edge], y]], np.float32)
            line = np.concatenate([line[: edge + 1], cut, hole[first:], hole[: first + 1], cut, line[edge + 1 :]])
    return line
