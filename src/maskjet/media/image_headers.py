"""Image sizes read from file headers, to be checked before memory is allocated for decoding.

Pillow reads AVIF's. The other headers take bounded time here: in Pillow's readers, 2 MB of PNG chunks that hold packed
colour profiles take 4 s, and a warning of a damaged tag goes to stderr.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from struct import Struct, unpack_from
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.AvifImagePlugin import AvifImageFile

MOST_PARTS = 2**16
"""Most segments, chunks or entries of a file; millions of empty ones would take seconds to look at."""
_JPEG_MARKER = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")  # neither a stuffed zero nor one without a length
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_NUMBERS = {1: "B", 3: "H", 4: "I", 6: "B", 8: "H", 9: "I", 16: "Q", 17: "Q"}  # whole numbers, by their type


def stated_size_hw(data: bytes) -> tuple[int, int] | None:
    """The (height, width) that a PNG, JPEG, WebP, AVIF, BMP, GIF or TIFF states; None for anything else.

    Args:
        data: Content of the whole file; all but AVIF state their size in its first part.
    """
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = unpack_from(">II", data, 16)
        elif data.startswith((b"GIF87a", b"GIF89a")):
            width, height = unpack_from("<HH", data, 6)
        elif data.startswith(b"BM"):  # with a header of OS/2 or Windows; rows from top to bottom have a negative height
            width, height = map(abs, unpack_from("<HH" if unpack_from("<I", data, 14) == (12,) else "<ii", data, 18))
        elif data.startswith(b"RIFF"):
            width, height = _webp(data)
        elif data.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
            width, height = _tiff(data)
        elif data.startswith(b"\xff\xd8"):
            width, height = _jpeg(data)
        else:
            avif = open_avif(data)
            return None if avif is None else (avif.height, avif.width)
    except (struct.error, OverflowError, ValueError):  # the file ends within its header, or states no size
        return None
    return height, width


def open_avif(data: bytes) -> AvifImageFile | None:
    """An AVIF as Pillow's image, whose pixels are not decoded yet; None if it is none, or not whole.

    `PIL.Image.open` would try other kinds, too, and has a limit and warnings of its own.
    """
    if data[4:8] != b"ftyp":
        return None
    from PIL.AvifImagePlugin import AvifImageFile

    with suppress(Exception):
        return AvifImageFile(BytesIO(data))
    return None


def is_whole_jpeg(data: bytes) -> bool:
    """Whether walking the segments reaches the image's end marker, not that of a thumbnail or appended video."""
    return any(marker == _END_OF_IMAGE for marker, _ in _jpeg_segments(data))


def _webp(data: bytes) -> tuple[int, int]:
    if data[8:16] == b"WEBPVP8X":
        width, wider, height, higher = unpack_from("<HBHB", data, 24)
        return (wider << 16 | width) + 1, (higher << 16 | height) + 1
    if data[8:16] == b"WEBPVP8L":
        (bits,) = unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if data[8:16] != b"WEBPVP8 ":
        raise ValueError
    width, height = unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _tiff(data: bytes) -> tuple[int, int]:
    """The largest size that the first image states; its directory is a list of (tag, type, count, value)."""
    order = ">" if data.startswith(b"MM") else "<"
    if 43 in data[2:4]:  # a BigTIFF
        at, counts, entry = 8, Struct(order + "Q"), Struct(order + "HHQ8s")
    else:
        at, counts, entry = 4, Struct(order + "H"), Struct(order + "HHI4s")
    (start,) = unpack_from(order + ("Q" if at == 8 else "I"), data, at)
    (count,) = counts.unpack_from(data, start)
    if count > MOST_PARTS:
        raise ValueError
    start += counts.size
    sides: dict[int, list[int]] = {_TIFF_WIDTH: [], _TIFF_HEIGHT: []}
    for tag, kind, _, value in entry.iter_unpack(data[start : start + count * entry.size]):
        if tag in sides and kind in _TIFF_NUMBERS:
            sides[tag] += unpack_from(order + _TIFF_NUMBERS[kind], value)
    return max(sides[_TIFF_WIDTH]), max(sides[_TIFF_HEIGHT])


def _jpeg(data: bytes) -> tuple[int, int]:
    """The largest size in a frame header before the first scan."""
    sizes = []
    for marker, start in _jpeg_segments(data):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = unpack_from(">HH", data, start + 3)
            sizes.append((width, height))
        if marker == _START_OF_SCAN:
            break
    return max(sizes, key=math.prod)


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """The marker of each segment, and where its length begins, in order; no more than MOST_PARTS."""
    position = 2
    for _ in range(MOST_PARTS):
        found = _JPEG_MARKER.search(data, position)
        if found is None:
            return
        start = found.end()
        yield data[start - 1], start
        position = start + int.from_bytes(data[start : start + 2], "big")
