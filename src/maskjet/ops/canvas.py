"""Placement of a frame in the network's input: stretched, or letterboxed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from maskjet.errors import InputError, translate_errors
from maskjet.spec import LetterboxPlace

GREY = (114, 114, 114)
"""The usual colour around a letterboxed frame."""


class Canvas(NamedTuple):
    """The area that the network's input shows: a rectangle around the frame, in pixels of the frame.

    Coordinate (x, y) of the input, 0..1, is (left + x × width, top + y × height) of the frame.
    """

    left: float
    """0 or less: the input's left border."""
    top: float
    """0 or less: the input's upper border."""
    width: float
    """Width of the input; `left` + `width` is at least the frame's width."""
    height: float
    """Height of the input; `top` + `height` is at least the frame's height."""

    @property
    def split(self) -> tuple[int, float, int, float, float, float]:
        """Integer and fractional part of `left` and of `top`, then `width` and `height`, in pixels of the frame.

        As float32 these place a pixel as exactly as if the frame filled the input.
        """
        left, top = math.floor(self.left), math.floor(self.top)
        return left, self.left - left, top, self.top - top, self.width, self.height

    @staticmethod
    def of(size_hw: tuple[int, int]) -> Canvas:
        """The canvas of a frame that fills the input."""
        return Canvas(0.0, 0.0, float(size_hw[1]), float(size_hw[0]))


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
    padding: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """RGB around the rectangle, on the 0..1 scale, before normalisation."""

    @property
    def box(self) -> tuple[int, int, int, int]:
        """(top, left, height, width)."""
        return self.top, self.left, self.height, self.width

    def canvas(self, source_hw: tuple[int, int], size_hw: tuple[int, int]) -> Canvas:
        """The canvas of an input of `size_hw` in which a frame of `source_hw` fills this rectangle; all in pixels."""
        height, width = source_hw  # multiplied before dividing: whole pixels stay exact
        return Canvas(
            -self.left * width / self.width,
            -self.top * height / self.height,
            size_hw[1] * width / self.width,
            size_hw[0] * height / self.height,
        )


def stretch(size_hw: tuple[int, int]) -> Region:
    """The region that fills an input of this size."""
    return Region(0, 0, *size_hw)


@dataclass(frozen=True)
class Letterbox:
    """Letterbox settings: resizing that keeps the aspect ratio, and padding."""

    color: tuple[int, int, int] = GREY
    """RGB around the frame, 0..255 each."""
    place: LetterboxPlace = "center"
    """Where the frame lies in the input."""

    def __str__(self) -> str:
        return f"letterbox, {self.place}, #{bytes(self.color).hex()}"

    def region(self, source_hw: tuple[int, int], size_hw: tuple[int, int]) -> Region:
        """The part of an input of `size_hw` that a frame of `source_hw` fills, all in pixels.

        Sides are rounded to the nearest pixel, at least 1. If an odd number of rows or columns is left over, the extra
        one of a centred frame lies below or to the right.
        """
        ratio = min(size_hw[0] / source_hw[0], size_hw[1] / source_hw[1])
        height, width = (max(round(side * ratio), 1) for side in source_hw)
        is_centred = self.place == "center"
        top, left = (size_hw[0] - height) // 2 * is_centred, (size_hw[1] - width) // 2 * is_centred
        red, green, blue = (float(np.float32(byte) / np.float32(255)) for byte in self.color)
        return Region(top, left, height, width, (red, green, blue))


def check_canvases(canvases: Sequence[Canvas] | None, sizes: Sequence[tuple[int, int]]) -> list[Canvas]:
    """Check the `canvases` argument of an op; None means that each image fills the input.

    Raises:
        InputError: Not one canvas per image, or one that does not hold its image.
    """
    if canvases is None:
        return [Canvas.of(size) for size in sizes]
    with translate_errors(InputError, "canvases must have one (left, top, width, height) per image"):
        given = [Canvas(*map(float, canvas)) for canvas in canvases]
    if len(given) != len(sizes):
        raise InputError(f"canvases must have one entry per image, {len(sizes)}, got {len(given)}.")
    for image, (canvas, (height, width)) in enumerate(zip(given, sizes, strict=True)):
        slack = 1e-6 * max(canvas.width, canvas.height)  # tolerance for rounding in left + width
        holds = canvas.left <= 0 and canvas.top <= 0
        holds = holds and canvas.left + canvas.width >= width - slack and canvas.top + canvas.height >= height - slack
        if not all(map(math.isfinite, canvas)) or not holds:
            raise InputError(
                f"canvases[{image}] must be (left, top, width, height) around its image of {width} × {height}, "
                f"got {tuple(canvas)}."
            )
    return given
