"""Operations on masks without dense arrays: RLE, outlines, strips and stray pixels."""

from typing import Literal

MaskPixels = Literal["raw", "box"]
"""Pixels of a mask to keep: all, or those inside its box."""
