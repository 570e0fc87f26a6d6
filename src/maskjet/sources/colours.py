"""Colour space and pixel aspect ratio of a video."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from av.video.frame import VideoFrame

from maskjet.sources.orientation import read_orientation

# Code points of ITU-T H.273, used by FFmpeg's enumerations and the containers alike.
_BT709, _BT470BG, _SMPTE170M, _BT2020, _BT2020_TRANSFER = 1, 5, 6, 9, 14
_PRIMARIES = frozenset({1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 22})
_TRANSFERS = frozenset({1, *range(4, 19)})
_NARROWEST = Fraction(1, 100)

FULL_RANGE = 2
"""FFmpeg's AVCOL_RANGE_JPEG, a value of `VideoFrame.color_range`."""

# Primaries and transfer assumed if only the matrix is stated; the keys are the matrices that swscale knows.
_COMPANIONS: Mapping[int, tuple[int, int]] = {
    _BT709: (_BT709, _BT709),
    4: (4, 4),  # FCC
    _BT470BG: (_BT470BG, _SMPTE170M),
    _SMPTE170M: (_SMPTE170M, _SMPTE170M),
    7: (7, 7),  # SMPTE 240M
    _BT2020: (_BT2020, _BT2020_TRANSFER),
}


@dataclass(frozen=True)
class PictureFormat:
    """Colour space and pixel aspect ratio of a video; integers are code points of ITU-T H.273."""

    matrix: int
    """Matrix coefficients, which convert YCbCr to RGB."""
    primaries: int
    """Colour primaries: the chromaticities of red, green and blue."""
    transfer: int
    """Transfer characteristics, which map sample values to light."""
    is_full_range: bool = False
    """Whether luma spans 0..255, not 16..235."""
    pixel_aspect: Fraction = Fraction(1)
    """Pixel aspect ratio: width divided by height."""


def is_hd(size_hw: tuple[int, int]) -> bool:
    """Whether video of this size is taken as BT.709 if it states no colour space, as players do."""
    return size_hw[0] > 576 or size_hw[1] >= 1280


def guess_picture_format(size_hw: tuple[int, int]) -> PictureFormat:
    """The format assumed for video that states none: BT.709 for HD, BT.601 below, limited range, square pixels."""
    matrix = _BT709 if is_hd(size_hw) else _SMPTE170M
    return PictureFormat(matrix, *_COMPANIONS[matrix])


def guess_matrix(picture: VideoFrame) -> int | None:
    """The matrix to decode a picture with if it states no known one; None if it does or is RGB."""
    if picture.format.is_rgb or int(picture.colorspace) in _COMPANIONS:
        return None
    # swscale would guess BT.601 for any size; it has the code of BT.470BG.
    return _BT709 if is_hd((picture.height, picture.width)) else _BT470BG


def read_picture_format(picture: VideoFrame, pixel_aspect: Fraction | None) -> PictureFormat:
    """Colours and pixel aspect of a decoded picture, upright; what it and its stream do not state, or 0, is guessed."""
    matrix = int(picture.colorspace)
    if matrix not in _COMPANIONS:
        matrix = guess_picture_format((picture.height, picture.width)).matrix
    primaries, transfer = _COMPANIONS[matrix]
    is_full_range = picture.color_range == FULL_RANGE or picture.format.name.startswith("yuvj")
    return PictureFormat(
        matrix,
        int(picture.color_primaries) if int(picture.color_primaries) in _PRIMARIES else primaries,
        int(picture.color_trc) if int(picture.color_trc) in _TRANSFERS else transfer,
        is_full_range and not picture.format.is_rgb,
        _upright(pixel_aspect, read_orientation(picture)),
    )


def _upright(pixel_aspect: Fraction | None, orientation: int) -> Fraction:
    """Pixel aspect ratio of the upright picture; 1 if it is missing or implausible."""
    if not pixel_aspect or not _NARROWEST <= pixel_aspect <= 1 / _NARROWEST:
        return Fraction(1)
    aspect = Fraction(pixel_aspect.numerator, pixel_aspect.denominator)  # PyAV 19 has its own class
    if orientation > 4:
        aspect = 1 / aspect
    return aspect.limit_denominator(500)  # H.264 stores 16 bits per term
