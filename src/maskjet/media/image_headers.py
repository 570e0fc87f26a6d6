"""Image sizes read from file headers, to be checked before memory is allocated for decoding."""

from __future__ import annotations

import re
from collections.abc import Iterator

_JPEG_FRAME = re.compile(rb"\xff[\xc0-\xc3\xc5-\xc7\xc9-\xcb\xcd-\xcf]")
_JPEG_SEGMENT = re.compile(rb"\xff+[\x01-\xfe]")
MOST_PARTS = 2**16
"""Most segments, chunks, entries or boxes of a file; millions of empty ones would take seconds to look at."""
_MOST_NESTED = 4  # boxes within boxes; AVIF's own nest three deep
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_SIZES = {1: 1, 3: 2, 4: 4, 16: 8}  # bytes of a value by its type


def stated_size_hw(data: bytes) -> tuple[int, int] | None:
    """The (height, width) that a PNG, JPEG, WebP, AVIF, BMP, GIF or TIFF states; None for anything else.

    Args:
        data: Content of the whole file.
    """
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _read(data, 20, 4, "big"), _read(data, 16, 4, "big")
        if data.startswith((b"GIF87a", b"GIF89a")):
            return _read(data, 8, 2), _read(data, 6, 2)
        if data.startswith(b"BM"):
            return _bmp(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data)
        if is_avif(data):
            return _avif(data)
        if data.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
            return _tiff(data)
        return _jpeg(data) if data.startswith(b"\xff\xd8") else None
    except IndexError:  # the file ends within its header
        return None


def _read(data: bytes, start: int, size: int, order: str = "little") -> int:
    part = data[start : start + size]
    if len(part) < size:
        raise IndexError
    return int.from_bytes(part, "big" if order == "big" else "little")


def _bmp(data: bytes) -> tuple[int, int]:
    if _read(data, 14, 4) == 12:  # header of OS/2
        return _read(data, 20, 2), _read(data, 18, 2)
    height, width = _read(data, 22, 4), _read(data, 18, 4)
    return min(height, 2**32 - height), min(width, 2**32 - width)  # negative height: rows from top to bottom


def _webp(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return _read(data, 27, 3) + 1, _read(data, 24, 3) + 1
    if kind == b"VP8L":
        bits = _read(data, 21, 4)
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    return (_read(data, 28, 2) & 0x3FFF, _read(data, 26, 2) & 0x3FFF) if kind == b"VP8 " else None


def _tiff(data: bytes) -> tuple[int, int] | None:
    """Size of the first image; its directory is a list of (tag, type, count, value)."""
    order = "big" if data.startswith(b"MM") else "little"
    is_big = _read(data, 2, 2, order) == 43
    offset, count_size, entry_size, value_at = (8, 8, 20, 12) if is_big else (4, 2, 12, 8)
    start = _read(data, offset, 8 if is_big else 4, order)
    found: dict[int, int] = {}
    count = _read(data, start, count_size, order)
    if count > MOST_PARTS:
        return None
    for number in range(count):
        entry = start + count_size + number * entry_size
        tag, kind = _read(data, entry, 2, order), _read(data, entry + 2, 2, order)
        if tag in (_TIFF_WIDTH, _TIFF_HEIGHT) and kind in _TIFF_SIZES:
            value = _read(data, entry + value_at, _TIFF_SIZES[kind], order)
            found[tag] = max(found.get(tag, 0), value)
    return (found[_TIFF_HEIGHT], found[_TIFF_WIDTH]) if len(found) == 2 else None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Size in the largest frame header before the first scan, found by walking the segments."""
    position, largest = 2, None
    for _ in range(MOST_PARTS):
        marker = _JPEG_SEGMENT.search(data, position)
        if marker is None:
            return largest
        start = marker.end()
        if _JPEG_FRAME.fullmatch(data, start - 2, start):
            size = _read(data, start + 3, 2, "big"), _read(data, start + 5, 2, "big")
            largest = max(largest or size, size, key=lambda hw: hw[0] * hw[1])
        if data[start - 1] == 0xDA:
            return largest
        position = start + (0 if 0xD0 <= data[start - 1] <= 0xD8 else _read(data, start, 2, "big"))
    return None


_BOXES = {b"meta": 4, b"iprp": 0, b"ipco": 0}  # AVIF's boxes around properties, with the bytes before what they hold


def is_avif(data: bytes) -> bool:
    """Whether a file is an AVIF, by its brands."""
    return data[4:8] == b"ftyp" and any(
        brand in data[8 : int.from_bytes(data[:4], "big")] for brand in (b"avif", b"avis")
    )


def avif_orientation(data: bytes) -> tuple[int, int | None]:
    """How an AVIF is to be turned, then mirrored.

    Returns:
        Quarter turns against the clock, and the axis to mirror along: 0 swaps top and bottom, 1 left and right, None
        mirrors nothing. (0, None) where several images in the file state different ones.
    """
    turns = {content[0] & 3 for kind, content in _properties(data, 0, len(data)) if kind == b"irot" and content}
    mirrors = {content[0] & 1 for kind, content in _properties(data, 0, len(data)) if kind == b"imir" and content}
    return turns.pop() if len(turns) == 1 else 0, mirrors.pop() if len(mirrors) == 1 else None


def _avif(data: bytes) -> tuple[int, int] | None:
    """The largest size of an image in the file: that of the whole, not of its tiles."""
    sizes = [
        (_read(content, 8, 4, "big"), _read(content, 4, 4, "big"))
        for kind, content in _properties(data, 0, len(data))
        if kind == b"ispe"
    ]
    return max(sizes, key=lambda hw: hw[0] * hw[1], default=None)


def _properties(data: bytes, start: int, end: int, depth: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Type and content of each box that is a property of an image."""
    for _ in range(MOST_PARTS):
        if start + 8 > end:
            return
        if depth > _MOST_NESTED:
            break
        size, kind = _read(data, start, 4, "big"), data[start + 4 : start + 8]
        if size < 8:  # 0 and 1 are for boxes of gigabytes
            return
        stop = min(start + size, end)
        if kind in _BOXES:
            yield from _properties(data, start + 8 + _BOXES[kind], stop, depth + 1)
        elif kind in (b"ispe", b"irot", b"imir"):
            yield kind, data[start + 8 : stop]
        start += size
    raise IndexError  # what is not looked at might state a larger size
