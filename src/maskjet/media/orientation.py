"""How the pictures of a video are turned and mirrored to be upright: in one of eight ways, as in EXIF."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from av.video.frame import VideoFrame
from numpy.typing import NDArray


@dataclass(frozen=True)
class Orientation:
    """The way from a stored picture to the upright one: its axes are swapped, then it is mirrored."""

    is_transposed: bool = False
    """Whether rows become columns."""
    mirrors_x: bool = False
    """Whether left and right are exchanged, after rows have become columns."""
    mirrors_y: bool = False
    """Whether top and bottom are exchanged, after rows have become columns."""

    def apply(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """The upright view of an array [H, W, ...]."""
        upright = pixels.swapaxes(0, 1) if self.is_transposed else pixels
        return upright[:: -1 if self.mirrors_y else 1, :: -1 if self.mirrors_x else 1]


UPRIGHT = Orientation()
"""Nothing is to be done."""
_YUV = ("yuv", "nv", "p0", "cuda")  # names of formats, on the CPU or a GPU


def read_orientation(picture: VideoFrame) -> Orientation:
    """The orientation that a decoded picture's display matrix states; the nearest one if it states another angle.

    Of pictures that are not YUV the angle alone: PyAV 18.1 frees the name of a PNG's colour profile, which belongs to
    the picture, and with it ends the process.
    """
    matrix = None
    if picture.format.name.startswith(_YUV):
        try:
            side_data: Any = picture.side_data
            matrix = bytes(side_data["DISPLAYMATRIX"])
        except KeyError:
            return UPRIGHT
        except ValueError:  # PyAV does not know the kind of some other data of the picture
            pass
    if matrix is None:
        turns = round(picture.rotation / 90) % 4  # counter-clockwise
        return Orientation(turns % 2 == 1, turns >= 2, turns in (1, 2))
    # It takes a pixel at (x, y) to (a * x + c * y, b * x + d * y).
    a, b, _, c, d, *_ = struct.unpack("=9i", matrix)
    if abs(b) + abs(c) > abs(a) + abs(d):
        return Orientation(True, c < 0, b < 0)
    return Orientation(False, a < 0, d < 0)
