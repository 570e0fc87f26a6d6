"""Rotated boxes: rectangles of least area around masks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maskjet.jit import Ints, compiled
from maskjet.masks.coco_rle import Runs


def rotated_boxes(runs: Runs | None, xyxy: NDArray[np.floating]) -> NDArray[np.float32]:
    """Corners of the rectangles of least area around n masks, float32 [n, 4, 2]; see `Detections.rotated_boxes`.

    Around an empty mask, and without runs around all, it is the box of `xyxy` [n, 4].
    """
    corners = xyxy.astype(np.float64).take([[0, 1], [2, 1], [2, 3], [0, 3]], axis=1)
    if runs is not None:
        _rotate(runs.spans, runs.firsts, runs.size_hw[0], corners)
    found = corners.astype(np.float32)
    topmost = np.lexsort((found[..., 0], found[..., 1]))[:, :1]
    return np.take_along_axis(found, (topmost + np.arange(4))[..., None] % 4, axis=1)


@compiled("void(Array(int64, 2, 'C', True), Array(int64, 1, 'C', True), int64, float64[:, :, ::1])")
def _rotate(spans: Ints, firsts: Ints, height: int, corners: NDArray[np.float64]) -> None:
    """Replace the corners of masks that are not empty by those of their rectangles, clockwise as seen.

    A rectangle of least area has a side along the convex hull. The hull is measured along and across each of its sides
    in units of 1 / the side's length, that is, in whole numbers.
    """
    for mask in range(len(firsts) - 1):
        if firsts[mask] == firsts[mask + 1]:
            continue
        hull = _find_hull(spans[firsts[mask] : firsts[mask + 1]], height)
        least = np.inf
        for i in range(len(hull)):  # the first side is upright, from the lowest to the topmost point at the left
            x, y = hull[i, 0] - hull[i - 1, 0], hull[i, 1] - hull[i - 1, 1]
            low, high, near, far = np.inf, -np.inf, np.inf, -np.inf
            for point in hull:
                along, across = point[0] * x + point[1] * y, point[1] * x - point[0] * y
                low, high = min(low, along), max(high, along)
                near, far = min(near, across), max(far, across)
            square = x * x + y * y
            area = (high - low) * (far - near) / square
            if area < least * (1 - 1e-12):  # equal areas differ by up to 1e-15, as they are rounded
                least = area
                for corner, (u, v) in enumerate(((low, near), (high, near), (high, far), (low, far))):
                    corners[mask, corner, 0] = (u * x - v * y) / square
                    corners[mask, corner, 1] = (u * y + v * x) / square


@compiled("int64[:, ::1](Array(int64, 2, 'C', True), int64)")
def _find_hull(spans: Ints, height: int) -> Ints:
    """Corners of the convex hull of a mask's pixel areas, int64 [h, 2] (x, y), clockwise as seen; a monotone chain."""
    columns, found = np.empty((4 * len(spans), 3), np.int64), 0  # x, top and bottom
    for start, end in spans:
        first, last = start // height, (end - 1) // height
        for x in range(first, last + 1):
            if first + 1 < x < last - 1:
                continue  # between whole columns
            bottom = (end - 1) % height + 1 if x == last else height
            if found and columns[found - 1, 0] == x:
                columns[found - 1, 2] = bottom
            else:
                columns[found] = x, start % height if x == first else 0, bottom
                found += 1
    hull, size = np.empty((4 * found, 2), np.int64), 0
    for i in range(4 * found):
        place = min(i, 4 * found - 1 - i)  # each column has a left and a right side
        x, y = columns[place // 2, 0] + place % 2, columns[place // 2, 1 if i < 2 * found else 2]
        while size > 1:
            (x1, y1), (x2, y2) = hull[size - 2], hull[size - 1]
            if (x2 - x1) * (y - y2) > (y2 - y1) * (x - x2):  # a turn clockwise
                break
            size -= 1
        hull[size] = x, y
        size += 1
    return hull[:size].copy()
