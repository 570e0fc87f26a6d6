"""Outlines of masks: opacity of a pixel, tabulated by the number of mask pixels in a disc around it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WIDEST = 32
"""Largest width of an outline in pixels; discs of wider ones would not fit into a strip of `cpu.paint`."""


class Outline(NamedTuple):
    """An anti-aliased line along a mask's border, defined for each pixel by the mask's pixels around it alone.

    The share of a disc that is inside tells how far its centre is from a straight border. So the line is as smooth as a
    border that is smoothed over the disc, and equally wide in all directions.
    """

    outwards: int
    """Most rows and columns by which the line extends out of the mask."""
    inwards: int
    """Most rows and columns by which the line extends into the mask."""
    reaches: NDArray[np.int64]
    """int64 [2 r + 1]: the disc's half-width in columns, by row; empty without outlines."""
    coverage: NDArray[np.uint16]
    """uint16: opacity of the line in 256ths by the number of pixels inside the disc."""


@lru_cache
def outline(width: int) -> Outline:
    """The outline of a width in pixels, 0 for none; centred on the border, odd widths half a pixel inwards."""
    if width == 0:
        return Outline(0, 0, np.empty(0, np.int64), np.zeros(1, np.uint16))
    radius = 2 / math.pi * (width + 2)  # smallest disc whose inside share varies across the whole line
    rows = np.arange(-int(radius), int(radius) + 1)
    reaches = np.sqrt(radius**2 - rows**2).astype(np.int64)
    pixels = int((2 * reaches + 1).sum())
    depth = np.linspace(-1, 1, 2**14 + 1)  # signed distance of the border from the disc's centre, in radii
    share = 0.5 + (np.arcsin(depth) + depth * np.sqrt(1 - depth**2)) / math.pi
    distance = np.interp(np.arange(pixels + 1) / pixels, share, depth) * math.sqrt(pixels / math.pi)
    coverage = (width / 2 + 0.5 - np.abs(distance - width % 2 / 2)).clip(0, 1)
    coverage[[0, -1]] = 0
    return Outline(max(width // 2, 1), width - width // 2, reaches, np.rint(256 * coverage).astype(np.uint16))
