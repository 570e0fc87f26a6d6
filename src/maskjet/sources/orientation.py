"""How the pictures of a video are turned and mirrored to be upright: in one of eight ways, numbered as in EXIF."""

from __future__ import annotations

import struct
from typing import Any

from av.sidedata.sidedata import SideDataContainer
from av.video.frame import VideoFrame

_MIRRORED = {(False, False): 1, (True, False): 2, (True, True): 3, (False, True): 4}
"""EXIF orientations by (left and right swapped, top and bottom swapped); + 4 if transposed first."""
_YUV = ("yuv", "nv", "p0", "cuda")  # names of formats, on the CPU or a GPU


def read_orientation(picture: VideoFrame) -> int:
    """The orientation, 1 to 8, that a picture's display matrix states; the nearest one if it states another angle.

    Of pictures that are not YUV the angle alone: PyAV 18.1 frees the name of a PNG's colour profile, which belongs to
    the picture, and with it ends the process.
    """
    matrix = None
    if picture.format.name.startswith(_YUV):
        try:
            # With `picture.side_data` PyAV 18 makes a cycle, and each picture waits for the garbage collector.
            side_data: Any = SideDataContainer(picture)  # type: ignore[call-arg]
            matrix = bytes(side_data["DISPLAYMATRIX"])
        except KeyError:
            return 1
        except ValueError:  # PyAV does not know the kind of some other data of the picture
            pass
    if matrix is None:
        return (1, 8, 3, 6)[round(picture.rotation / 90) % 4]  # counter-clockwise
    # It takes a pixel at (x, y) to (a * x + c * y, b * x + d * y).
    a, b, _, c, d, *_ = struct.unpack("=9i", matrix)
    if abs(b) + abs(c) > abs(a) + abs(d):
        return 4 + _MIRRORED[c < 0, b < 0]
    return _MIRRORED[a < 0, d < 0]
