"""Encoders of annotated video: codec, quality and threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast, get_args

import av
import av.error

from maskjet.checks import check_choice, check_whole
from maskjet.errors import UnsupportedError, explain

Encoder = Literal["x264", "nvenc", "auto"]
HIGHEST_QUALITY, DEFAULT_QUALITY = 100, 60
_MOST_THREADS = 8  # each thread delays a frame, which a crash would lose
_MOST_SIDE = 16_384  # largest side for x264, in pixels
_USUAL_HW = (720, 1280)


@dataclass(frozen=True)
class Encoding:
    """Encoder and quality of annotated video.

    Raises:
        InputError: A value is not as below.
        UnsupportedError: NVENC is asked for, and can't be used.
    """

    encoder: Encoder = "x264"
    """Encoder of H.264: "x264" on the CPU, "nvenc" on a GPU, or "auto": NVENC if it takes the frames, else x264."""
    quality: int = DEFAULT_QUALITY
    """Quality, 1 to 100, similar for all encoders; 12 more double or triple the size. 60 is x264's CRF 22."""

    def __post_init__(self) -> None:
        check_choice("encoder", self.encoder, get_args(Encoder))
        check_whole("quality", self.quality, (1, HIGHEST_QUALITY))
        if self.encoder == "nvenc":
            self._uses_nvenc(_USUAL_HW)

    def add_stream(
        self, container: av.container.OutputContainer, size_hw: tuple[int, int], fps: Fraction, threads: int
    ) -> av.VideoStream:
        """Add a stream to a container: VP9 in WebM, else H.264. It takes NV12.

        Raises:
            UnsupportedError: NVENC is asked for, and does not take frames of this size; or no encoder of H.264 does.
        """
        # 10 ms of CPU per noisy 720p frame; veryfast at the same PSNR takes 20 ms and saves a fifth of the size.
        codec, level = "libx264", str(min(52 - self.quality / 2, 51))
        options = {"preset": "ultrafast", "crf": level}
        if container.format.name == "webm":
            codec, level = "libvpx-vp9", str(min(round(77 - self.quality * 0.75), 63))  # about the same PSNR as x264
            options = {"deadline": "realtime", "cpu-used": "8", "row-mt": "1", "crf": level, "b": "0"}
        elif self._uses_nvenc(size_hw):
            codec, options = "h264_nvenc", {"preset": "p4", "rc": "vbr", "cq": level, "bf": "0"}
        elif max(size_hw) > _MOST_SIDE:
            size = f"{size_hw[1]}x{size_hw[0]}"
            raise UnsupportedError(f"out must be .webm for frames of more than {_MOST_SIDE} pixels a side, got {size}.")
        stream = cast("av.VideoStream", container.add_stream(codec, rate=fps, options=options))
        stream.height, stream.width = size_hw
        stream.pix_fmt = "yuv420p" if codec == "libvpx-vp9" else "nv12"
        stream.codec_context.thread_type = "FRAME"  # slice threads, PyAV's default, take 10 % longer
        stream.codec_context.thread_count = threads
        return stream

    def _uses_nvenc(self, size_hw: tuple[int, int]) -> bool:
        """Whether to use NVENC for this size; raises UnsupportedError if it is required but unavailable."""
        if self.encoder == "x264":
            return False
        try:
            trial: Any = av.CodecContext.create("h264_nvenc", "w")
            trial.height, trial.width = size_hw
            trial.pix_fmt, trial.time_base = "nv12", Fraction(1, 30)
            trial.open()
        except (av.error.FFmpegError, ValueError) as error:
            if self.encoder == "auto":
                return False
            reason = "FFmpeg lacks it" if isinstance(error, av.codec.codec.UnknownCodecError) else explain(error)
            raise UnsupportedError(
                f"encoder='nvenc' needs an NVIDIA GPU with NVENC, its driver and a size it takes; "
                f"{size_hw[1]}x{size_hw[0]} can't be encoded here ({reason}): use 'auto' or 'x264'."
            ) from error
        return True


def share_cores(videos: int) -> int:
    """Number of threads per encoder for several videos written in parallel."""
    return max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) // max(videos, 1)))
