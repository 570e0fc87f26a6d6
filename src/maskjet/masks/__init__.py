"""Operations on masks without dense arrays: RLE, outlines, strips and stray pixels."""

from typing import Literal

MaskPixels = Literal["raw", "box", "largest"]
"""Pixels of a mask to keep: all, those inside its box, or those of its large connected parts."""
