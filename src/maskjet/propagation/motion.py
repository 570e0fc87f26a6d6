"""Motion of instances from image to image: points, robust similarities, and masks moved by them.

Points are complex numbers, x + iy in pixels. A similarity is complex128 [2], (turn, offset): it moves p to turn × p +
offset.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.jit import Bools, Ints, compiled
from maskjet.masks.coco_rle import BYTES_PER_COUNT, Runs, write_string

POINTS = 16
"""Points of an instance that are followed."""
WIDTH = 320
"""Longest side of the shrunk images in which they are, in pixels."""
_WINDOW = (11, 11)  # pixels around a point that are compared, in shrunk images
_LEVELS = 2
_CRITERIA = (cv2.TERM_CRITERIA_COUNT + cv2.TERM_CRITERIA_EPS, 10, 0.03)
_FEWEST = 4  # points of a motion
_ROUNDS = 3
_ROUNDING = 0.25  # distance of points that says nothing, in shrunk pixels
_MOST_ALIKE = 2**16 - 2
_RIGID = 4.0  # spread of an instance, in shrunk pixels, above which its points may turn and scale it

Points = NDArray[np.complex128]
Image = NDArray[np.uint8]


def choose_points(runs: Runs) -> Points:
    """Points spread evenly over masks, in column-major order: complex128 [n, POINTS]; NaN for an empty mask."""
    return _choose_points(runs.spans, runs.firsts, runs.size_hw[0])


@compiled("complex128[:, ::1](Array(int64, 2, 'C', True), Array(int64, 1, 'C', True), int64)")
def _choose_points(spans: Ints, firsts: Ints, height: int) -> Points:
    points = np.full((len(firsts) - 1, POINTS), complex(np.nan, np.nan))
    for i in range(len(points)):
        own = spans[firsts[i] : firsts[i + 1]]
        area = 0
        for k in range(len(own)):
            area += own[k, 1] - own[k, 0]
        before, k = 0, 0  # pixels of runs before run k
        for j in range(POINTS if area else 0):
            wanted = (2 * j + 1) * area // (2 * POINTS)
            while before + own[k, 1] - own[k, 0] <= wanted:
                before += own[k, 1] - own[k, 0]
                k += 1
            pixel = own[k, 0] + wanted - before
            points[i, j] = complex(pixel // height, pixel % height)
    return points


def follow(before: Image, after: Image, points: Points, factor: complex) -> tuple[Points, Bools]:
    """Follow points from a shrunk grey image to another, by pyramidal Lucas-Kanade (Bouguet 2001).

    Args:
        before: uint8 [h, w].
        after: The same of another frame.
        points: complex128 [n, k], in pixels of the frame.
        factor: Frame pixels per shrunk pixel, across and down.

    Returns:
        Where the points are then, complex128 [n, k], and whether they were found, bool [n, k].
    """
    flat = np.nan_to_num(points.ravel(), nan=-1e4)
    x, y = (flat.real + 0.5) / factor.real - 0.5, (flat.imag + 0.5) / factor.imag - 0.5
    at = np.stack([x, y], axis=1).astype(np.float32)[:, None]
    if not len(at):
        return points, np.zeros(points.shape, np.bool_)
    moved, is_found, _ = cv2.calcOpticalFlowPyrLK(  # type: ignore[call-overload]
        before, after, at, None, winSize=_WINDOW, maxLevel=_LEVELS, criteria=_CRITERIA
    )
    step = (moved - at)[:, 0].astype(np.float64) * (factor.real, factor.imag)
    height, width = before.shape
    is_inside = (at >= -1).all(axis=(1, 2)) & (at[:, 0, 0] <= width) & (at[:, 0, 1] <= height)
    there = points + (step[:, 0] + 1j * step[:, 1]).reshape(points.shape)
    return there, ((is_found[:, 0] > 0) & is_inside).reshape(points.shape)


@compiled("complex128[:, ::1](complex128[:, ::1], complex128[:, ::1], boolean[:, ::1], float64)")
def fit(before: Points, after: Points, is_found: Bools, factor: float) -> Points:
    """Fit a robust similarity to the points of each instance: complex128 [n, 2]; too few points do not move it.

    Weights are Geman and McClure's, around the median shift at first. Turn and scale of small instances are drawn to
    those of none, as if they had further points that do neither.
    """
    moves = np.zeros((len(before), 2), np.complex128)
    for i in range(len(before)):
        p, q = before[i][is_found[i]], after[i][is_found[i]]
        turn, offset = complex(1, 0), complex(0, 0)
        if len(p) >= _FEWEST:
            offset = complex(np.median((q - p).real), np.median((q - p).imag))
            for _ in range(_ROUNDS):
                apart = np.abs(q - turn * p - offset)
                weights = 1 / (1 + (apart / (_ROUNDING * factor + np.median(apart))) ** 2) ** 2
                total = weights.sum()
                middle, then = (weights * p).sum() / total, (weights * q).sum() / total
                still = total * (_RIGID * factor) ** 2
                turn = (weights * (q - then) * np.conj(p - middle)).sum() + still
                turn /= (weights * np.abs(p - middle) ** 2).sum() + still
                offset = then - turn * middle
        moves[i, 0], moves[i, 1] = turn, offset
    return moves


@compiled("uint16[:, ::1](Array(uint8, 2, 'C', True))")
def count_alike(crop: Image) -> NDArray[np.uint16]:
    """For each pixel, how many squares of 2 × 2 from it downwards are of its value alone: uint16 [h, w]."""
    rows, columns = crop.shape
    alike = np.zeros((rows, columns), np.uint16)
    for j in range(rows - 2, -1, -1):
        for i in range(columns - 1):
            value = crop[j, i]
            if value == crop[j, i + 1] == crop[j + 1, i] == crop[j + 1, i + 1]:
                alike[j, i] = 1 + min(alike[j + 1, i], _MOST_ALIKE)
    return alike


@compiled(
    "uint8[::1](Array(uint8, 2, 'C', True), Array(uint16, 2, 'C', True), complex128, complex128, complex128, "
    "UniTuple(int64, 4), UniTuple(int64, 2), int64)"
)
def move_mask(
    crop: Image,
    alike: NDArray[np.uint16],
    corner: complex,
    turn: complex,
    offset: complex,
    window: tuple[int, int, int, int],
    size_hw: tuple[int, int],
    least: int,
) -> NDArray[np.uint8]:
    """Move a mask by a similarity, and encode what is in a window; bilinear, as COCO's string.

    Args:
        crop: uint8 [h, w], 1 inside, with a border of at least one pixel outside.
        alike: Its `count_alike`; so many pixels need no interpolation.
        corner: Where its first pixel is.
        turn: Of the similarity.
        offset: Of the similarity.
        window: Left, top, right and bottom of what may be inside, in pixels; within the image.
        size_hw: The image's size.
        least: Fewest pixels; of fewer the string is empty.
    """
    left, top, right, bottom = window
    height, pixels = size_hw[0], size_hw[0] * size_hw[1]
    edges, count, area = np.empty(4 * (bottom - top + 2), np.int64), 0, 0
    rows, columns = crop.shape
    back = 1 / turn
    for x in range(left, right):
        if count + bottom - top + 2 > len(edges):
            edges = np.append(edges, np.empty_like(edges))
        is_inside = False
        at = (complex(x, top) - offset) * back - corner
        y = top
        while y < bottom:
            u, v = at.real - (y - top) * back.imag, at.imag + (y - top) * back.real
            i, j = int(np.floor(u)), int(np.floor(v))
            value, steps = 0.0, 1
            if 0 <= i < columns - 1 and 0 <= j < rows - 1:
                a, b, c, d = crop[j, i], crop[j, i + 1], crop[j + 1, i], crop[j + 1, i + 1]
                if alike[j, i] and back.real > 0:
                    value = float(a)
                    aside = np.inf if back.imag == 0 else (u - i - (back.imag < 0)) / back.imag
                    steps = max(int(min((j + alike[j, i] - v) / back.real, aside, bottom - y)), 1)
                else:
                    across, down = u - i, v - j
                    value = (1 - down) * ((1 - across) * a + across * b) + down * ((1 - across) * c + across * d)
            area += steps * (value > 0.5)
            if (value > 0.5) != is_inside:
                is_inside = not is_inside
                pixel = x * height + y
                if is_inside and count and edges[count - 1] == pixel:  # goes on from the column before
                    count -= 1
                else:
                    edges[count] = pixel
                    count += 1
            y += steps
        if is_inside:
            edges[count] = x * height + bottom
            count += 1
    if area < least:
        return np.empty(0, np.uint8)
    counts, before = np.empty(count + 1, np.int64), 0
    for k in range(count):
        counts[k], before = edges[k] - before, edges[k]
    counts[count] = pixels - before
    string = np.empty(BYTES_PER_COUNT * len(counts), np.uint8)
    return string[: write_string(counts, string)]
