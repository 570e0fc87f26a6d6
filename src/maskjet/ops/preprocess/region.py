"""The part of the network's input that a frame fills: all of it, or a letterbox."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Region:
    """A rectangle of the network's input, in input pixels."""

    top: int
    """Input rows above the rectangle."""
    left: int
    """Input columns left of the rectangle."""
    height: int
    """Rows of the rectangle, at least 1."""
    width: int
    """Columns of the rectangle, at least 1."""
    padding: float = 0.0
    """Value around the rectangle, on the 0..1 scale, before normalisation."""

    @property
    def box(self) -> tuple[int, int, int, int]:
        """(top, left, height, width)."""
        return self.top, self.left, self.height, self.width


def stretch(size_hw: tuple[int, int]) -> Region:
    """The region that fills an input of this size."""
    return Region(0, 0, *size_hw)


def letterbox(source_hw: tuple[int, int], size_hw: tuple[int, int], padding: int = 114) -> Region:
    """The centred part of an input that a frame fills when it keeps its aspect ratio.

    Sides are rounded to the nearest pixel, at least 1. If an odd number of rows or columns is left over, the extra one
    lies below or to the right.

    Args:
        source_hw: (height, width) of the frame, in pixels.
        size_hw: (h, w) of the input, in pixels.
        padding: Byte value of the input around the region.

    Returns:
        The region; a point (x, y) of the frame lies at (left + x × width / W, top + y × height / H) of the input.
    """
    ratio = min(size_hw[0] / source_hw[0], size_hw[1] / source_hw[1])
    height, width = (max(round(side * ratio), 1) for side in source_hw)
    return Region(
        (size_hw[0] - height) // 2,
        (size_hw[1] - width) // 2,
        height,
        width,
        float(np.float32(padding) / np.float32(255)),
    )
