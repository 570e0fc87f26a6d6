"""Whether a GIF is an animation, which is read as a video."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path

import av
import av.error

from maskjet import limits
from maskjet.errors import SourceError
from maskjet.media.image_headers import stated_size_hw


def is_animated(path: Path) -> bool:
    """Whether a file is a GIF with several images; False if it can't be told.

    Animated PNG, WebP and AVIF are read as images, their first one.
    """
    with suppress(OSError, IndexError, av.error.FFmpegError), path.open("rb") as file:
        if file.read(6) in (b"GIF87a", b"GIF89a"):
            with av.open(f"file:{path}", format="gif", options={"protocol_whitelist": "file"}) as container:
                packets = container.demux(video=0)
                return len([packet for packet in islice(packets, 2) if packet.size]) == 2
    return False


def check_size(path: Path) -> None:
    """Raise SourceError if an animation states too large pictures, which FFmpeg refuses without a reason."""
    with path.open("rb") as file:
        size_hw = stated_size_hw(file.read(32))
    if size_hw is not None:
        limits.check("image_pixels", size_hw[0] * size_hw[1], f"a frame of {str(path)!r} has", SourceError)
