"""What is drawn, and how large."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from maskjet.errors import InputError

ColorBy = Literal["class", "instance"]
"""What sets the hue of an instance."""


@dataclass(frozen=True)
class DrawStyle:
    """What `draw` draws of each instance, and in which colours."""

    boxes: bool = True
    """Whether boxes are drawn."""
    labels: bool = True
    """Whether class names are written."""
    scores: bool = True
    """Whether confidences are written, after the class name if that is, too."""
    masks: bool = True
    """Whether the insides of masks are tinted."""
    outlines: bool = True
    """Whether the outlines of masks are drawn."""
    line_width: float | None = None
    """Width of boxes and outlines in pixels, above 0, drawn as at least 1; None for one that suits the image's size."""
    color_by: ColorBy = "class"
    """"class": a hue per class, always the same, and in it a shade per instance. "instance": a hue per instance."""

    def __post_init__(self) -> None:
        for name in ("boxes", "labels", "scores", "masks", "outlines"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        width = self.line_width
        is_number = isinstance(width, int | float) and not isinstance(width, bool)
        if width is not None and not (is_number and 0 < width < math.inf):
            raise InputError(f"line_width must be a number of pixels above 0, or None, got {width!r}.")
        if self.color_by not in get_args(ColorBy):
            choices = " or ".join(map(repr, get_args(ColorBy)))
            raise InputError(f"color_by must be {choices}, got {self.color_by!r}.")


@dataclass(frozen=True)
class Measures:
    """Sizes in pixels that suit an image; see `measure`."""

    line: int
    """Width of boxes and outlines."""
    font_scale: float
    """OpenCV's scale of the letters; 0.5 are letters for 720p."""
    weight: int
    """OpenCV's thickness of the letters."""
    pad: int
    """Space between a label's text and its sides."""


def measure(size_hw: tuple[int, int], line_width: float | None) -> Measures:
    """Choose sizes for an image, in proportion to its sides; letters never get too small to be read.

    Args:
        size_hw: (height, width) of the image in pixels, at least 1.
        line_width: Width of boxes and outlines in pixels, or None.
    """
    height, width = size_hw
    scale = min(math.sqrt(height * width) / 960, min(size_hw) / 360)  # 1 for 720p; less for a long strip
    line = min(1.5 * scale if line_width is None else line_width, *size_hw, _WIDEST)
    font_scale = max(0.5 * scale, _SMALLEST_FONT)
    return Measures(
        line=max(round(line), 1),
        font_scale=font_scale,
        weight=max(round(1.3 * font_scale), 1),
        pad=max(round(7 * font_scale), 1),
    )


_SMALLEST_FONT = 0.3  # capitals of 6 pixels
_WIDEST = 2**15 - 1  # OpenCV's limit
