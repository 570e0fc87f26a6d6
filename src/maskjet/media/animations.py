"""Whether a GIF or PNG is an animation, which is read as a video."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import av
import av.error

from maskjet import limits
from maskjet.errors import SourceError
from maskjet.media.image_headers import MOST_PARTS, stated_size_hw

_PNG_START = b"\x89PNG\r\n\x1a\n"


def is_animated(path: Path) -> bool:
    """Whether a file is a GIF with several images, or a PNG with several (APNG); False if it can't be told.

    Animated WebP and AVIF are read as images, their first one: FFmpeg does not decode the former, and the latter only
    in part.
    """
    with suppress(OSError, IndexError, av.error.FFmpegError), path.open("rb") as file:
        start = file.read(len(_PNG_START))
        if start == _PNG_START:
            return _png_is_animated(file)
        if start.startswith((b"GIF87a", b"GIF89a")):
            with av.open(f"file:{path}", format="gif", options={"protocol_whitelist": "file"}) as container:
                packets = container.demux(video=0)
                return len([packet for packet in islice(packets, 2) if packet.size]) == 2
    return False


def is_animated_png(path: Path) -> bool:
    """Whether a file is an APNG, which FFmpeg takes for a still image if the animation is stated late in it."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(_PNG_START)) == _PNG_START and _png_is_animated(file)
    return False


def check_size(path: Path) -> None:
    """Raise SourceError if an animation states too large pictures, which FFmpeg refuses without a reason."""
    with path.open("rb") as file:
        size_hw = stated_size_hw(file.read(32))
    if size_hw is not None:
        limits.check("image_pixels", size_hw[0] * size_hw[1], f"a frame of {str(path)!r} has", SourceError)


def _png_is_animated(file: BinaryIO) -> bool:
    """Whether a chunk before the pixels states several images; reads on from the first chunk."""
    for _ in range(MOST_PARTS):
        head = file.read(8)
        if head[4:] == b"acTL":
            return int.from_bytes(file.read(4), "big") > 1
        if head[4:] in (b"IDAT", b""):
            break
        file.seek(int.from_bytes(head[:4], "big") + 4, os.SEEK_CUR)
    return False
