"""Whether a GIF or PNG is an animation, which is read as a video."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from maskjet import limits
from maskjet.errors import SourceError
from maskjet.media.image_headers import stated_size_hw

_GIF_IMAGE, _GIF_EXTENSION = b"\x2c", b"\x21"


def is_animated(path: Path) -> bool:
    """Whether a file is a GIF with several images, or a PNG with several (APNG); False if it can't be told.

    Animated WebP and AVIF are read as images, their first one: FFmpeg does not decode the former, and the latter only
    in part.
    """
    with suppress(OSError, IndexError), path.open("rb") as file:
        start = file.read(13)
        if start.startswith((b"GIF87a", b"GIF89a")):
            return _gif_is_animated(file, start)
        if start.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png_is_animated(file)
    return False


def check_size(path: Path) -> None:
    """Raise if an animation states too large pictures; FFmpeg refuses them without a reason.

    Raises:
        SourceError: They are larger than the limit.
    """
    with path.open("rb") as file:
        size_hw = stated_size_hw(file.read(32))
    if size_hw is not None:
        limits.check("image_pixels", size_hw[0] * size_hw[1], f"a frame of {str(path)!r} has", SourceError)


def _gif_is_animated(file: BinaryIO, screen: bytes) -> bool:
    """Whether a second image follows the first, found by walking the blocks."""
    _skip_colours(file, screen[10])
    images = 0
    while kind := file.read(1):
        if kind == _GIF_IMAGE:
            images += 1
            if images == 2:
                return True
            _skip_colours(file, file.read(9)[8])
            file.seek(1, 1)
        elif kind == _GIF_EXTENSION:
            file.seek(1, 1)
        else:
            return False
        while size := file.read(1)[0]:
            file.seek(size, 1)
    return False


def _skip_colours(file: BinaryIO, flags: int) -> None:
    if flags & 0x80:
        file.seek(3 << (flags & 7) + 1, 1)


def _png_is_animated(file: BinaryIO) -> bool:
    """Whether an animation's header comes before the pixels and states several images."""
    file.seek(8)
    while len(header := file.read(8)) == 8:
        if header[4:] == b"acTL":
            return int.from_bytes(file.read(4), "big") > 1
        if header[4:] in (b"IDAT", b"IEND"):
            return False
        file.seek(int.from_bytes(header[:4], "big") + 4, 1)
    return False
