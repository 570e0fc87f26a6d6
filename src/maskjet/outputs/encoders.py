"""Encoders of annotated video: codec, quality and threads."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import cast

import av

from maskjet.errors import UnsupportedError

HIGHEST_QUALITY, DEFAULT_QUALITY = 100, 60
_MOST_THREADS = 8  # each thread delays a frame, which a crash would lose
_MOST_SIDE = 16_384  # largest side for x264, in pixels


def add_stream(
    container: av.container.OutputContainer, size_hw: tuple[int, int], fps: Fraction, *, quality: int, threads: int
) -> av.VideoStream:
    """Add a stream of NV12 to a container: VP9 in WebM, else H.264; UnsupportedError for too large frames.

    The quality, 1 to 100, is similar for both; 12 more double or triple the size, and 60 is x264's CRF 22.
    """
    # 10 ms of CPU per noisy 720p frame; veryfast at the same PSNR takes 20 ms and saves a fifth of the size.
    codec, options = "libx264", {"preset": "ultrafast", "crf": str(min(52 - quality / 2, 51))}
    if container.format.name == "webm":
        crf = str(min(round(77 - quality * 0.75), 63))  # about the same PSNR as x264
        codec, options = "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "row-mt": "1", "crf": crf, "b": "0"}
    elif max(size_hw) > _MOST_SIDE:
        size = f"{size_hw[1]}x{size_hw[0]}"
        raise UnsupportedError(f"out must be .webm for frames of more than {_MOST_SIDE} pixels a side, got {size}.")
    stream = cast("av.VideoStream", container.add_stream(codec, rate=fps, options=options))
    stream.height, stream.width = size_hw
    stream.pix_fmt = "yuv420p" if codec == "libvpx-vp9" else "nv12"
    stream.codec_context.thread_type = "FRAME"  # slice threads, PyAV's default, take 10 % longer
    stream.codec_context.thread_count = threads
    return stream


def share_cores(videos: int) -> int:
    """Number of threads per encoder for several videos written in parallel."""
    return max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) // max(videos, 1)))
