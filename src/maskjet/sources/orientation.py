"""Orientation of video pictures: one of eight rotations and reflections, numbered as in EXIF."""

from __future__ import annotations

import struct
from typing import Any

from av.sidedata.sidedata import SideDataContainer
from av.video.frame import VideoFrame

_MIRRORED = {(False, False): 1, (True, False): 2, (True, True): 3, (False, True): 4}
"""EXIF orientations by (left and right swapped, top and bottom swapped); + 4 if transposed first."""
_YUV = ("yuv", "nv", "p0", "cuda")  # prefixes of pixel formats, on the CPU or a GPU


def read_orientation(picture: VideoFrame) -> int:
    """The EXIF orientation, 1 to 8, nearest to a picture's display matrix.

    Of pictures that are not YUV the angle alone: PyAV 18.1 frees the name of a PNG's colour profile, which belongs to
    the picture, and with it ends the process.
    """
    matrix = None
    if picture.format.name.startswith(_YUV):
        try:
            # Not `picture.side_data`: in PyAV 18 it creates a reference cycle, and pictures wait for the collector.
            side_data: Any = SideDataContainer(picture)  # type: ignore[call-arg]
            matrix = bytes(side_data["DISPLAYMATRIX"])
        except KeyError:
            return 1
        except ValueError:  # side data of a kind unknown to PyAV
            pass
    if matrix is None:
        return (1, 8, 3, 6)[round(picture.rotation / 90) % 4]  # rotation is counter-clockwise
    # The matrix maps a pixel at (x, y) to (a * x + c * y, b * x + d * y).
    a, b, _, c, d, *_ = struct.unpack("=9i", matrix)
    if abs(b) + abs(c) > abs(a) + abs(d):
        return 4 + _MIRRORED[c < 0, b < 0]
    return _MIRRORED[a < 0, d < 0]
