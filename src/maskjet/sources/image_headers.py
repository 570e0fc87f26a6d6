"""Read image sizes from file headers, to check them before decoding allocates memory.

Headers take bounded time here: in Pillow's readers, 2 MB of PNG chunks that hold packed colour profiles take 4 s, and a
warning of a damaged tag goes to stderr.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct, unpack_from

import numpy as np
from numpy.typing import NDArray

from maskjet.jit import compiled

MOST_PARTS = 2**16
"""Most segments, chunks or entries of a file to read; millions of empty ones would take seconds."""
_JPEG_MARKER = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")  # not a stuffed zero, nor a marker without a length
_START_OF_SCAN = 0xDA
_TIFF_SIDES = {256: 0, 257: 1, 322: 0, 323: 1}  # tags of width and height, of the image and of its tiles
_TIFF_NUMBERS = {1: "B", 3: "H", 4: "I", 6: "B", 8: "H", 9: "I", 16: "Q", 17: "Q"}  # struct formats of integer types


def stated_size_hw(data: bytes) -> tuple[int, int] | None:
    """The (height, width) in the header of a PNG, JPEG, WebP, BMP, GIF or TIFF; None for anything else."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = unpack_from(">II", data, 16)
        elif data.startswith((b"GIF87a", b"GIF89a")):
            width, height = unpack_from("<HH", data, 6)
        elif data.startswith(b"BM"):  # header of OS/2 or Windows; negative height: rows from top to bottom
            width, height = map(abs, unpack_from("<HH" if unpack_from("<I", data, 14) == (12,) else "<ii", data, 18))
        elif data.startswith(b"RIFF"):
            width, height = _webp(data)
        elif data.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
            width, height = _tiff(data)
        elif data.startswith(b"\xff\xd8"):
            width, height, *_ = jpeg_header(data)
        else:
            return None
    except Exception:  # no image, or a truncated header
        return None
    return height, width


def jpeg_header(data: bytes) -> tuple[int, int, int, list[bytes]]:
    """Read a JPEG's header: all segments before the first scan.

    Returns:
        The largest (width, height) in a frame header, and the number of its components; then the content of segments of
        Exif and XMP.

    Raises:
        ValueError: There is no frame header.
        struct.error: It is cut off.
    """
    frames, descriptions = [], []
    for marker, start in _jpeg_segments(data):
        if marker == 0xE1:
            descriptions.append(data[start + 2 : start + int.from_bytes(data[start : start + 2], "big")])
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width, components = unpack_from(">HHB", data, start + 3)
            frames.append((width, height, components))
        elif marker == _START_OF_SCAN:
            break
    return *max(frames, key=lambda frame: frame[0] * frame[1]), descriptions


def jpeg_scans(data: bytes) -> tuple[int, int | None]:
    """Number of scans of a JPEG, and position of its own end marker, not a thumbnail's or appended video's.

    The position is None if there is no such marker within MOST_PARTS segments. Other threads work meanwhile.
    """
    scans, end = _count(np.frombuffer(data, dtype=np.uint8))
    return scans, None if end < 0 else end


@compiled("UniTuple(int64, 2)(Array(uint8, 1, 'C', True))")
def _count(data: NDArray[np.uint8]) -> tuple[int, int]:
    """Compiled part of `jpeg_scans`; returns -1 in place of None."""
    scans, position = 0, 2
    for _ in range(MOST_PARTS):
        while position + 1 < len(data):
            marker = data[position + 1]
            # Neither a stuffed zero nor a marker without a length.
            if data[position] == 0xFF and (0x02 <= marker <= 0xCF or 0xD8 <= marker <= 0xFE):
                break
            position += 1
        if position + 1 >= len(data):
            break
        if data[position + 1] == 0xD9:
            return scans, position
        scans += data[position + 1] == 0xDA
        start = position + 2
        if start + 1 >= len(data):
            break
        position = start + (int(data[start]) << 8 | int(data[start + 1]))
    return scans, -1


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
    """The largest (width, height) among the first image and its tiles, from its directory entries."""
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
    sides: tuple[list[int], list[int]] = ([], [])
    for tag, kind, _, value in entry.iter_unpack(data[start : start + count * entry.size]):
        if tag in _TIFF_SIDES and kind in _TIFF_NUMBERS:
            sides[_TIFF_SIDES[tag]].extend(unpack_from(order + _TIFF_NUMBERS[kind], value))
    return max(sides[0]), max(sides[1])


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (marker, position of the length) of each segment, in order; at most MOST_PARTS."""
    position = 2
    for _ in range(MOST_PARTS):
        found = _JPEG_MARKER.search(data, position)
        if found is None:
            return
        start = found.end()
        yield data[start - 1], start
        position = start + int.from_bytes(data[start : start + 2], "big")
