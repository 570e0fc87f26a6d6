"""Videos of the reach benchmark: street videos that last for a whole measurement, and a live one without B frames."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ProcessPoolExecutor
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path

import av
from av.video.frame import PictureType

from benchmarks.reach_report import VideoFile
from maskjet import traffic
from maskjet.traffic import FPS

SIZES_HW = {**traffic.SIZES_HW, "2160p": (2160, 3840)}
"""(height, width) of the sizes measured, by name."""
_SEED = 7
_LIVE_BIT_RATE = 20_000_000  # of 1080p
_LIVE_GROUP = 30  # frames from one key frame to the next: a second, as cameras have


class Videos:
    """The videos, each written once by a process of its own when the object is made; a context manager.

    Street videos are drawn and encoded for a few seconds only. Their packets are then written again and again into a
    file that is longer than any measurement, so that none includes the opening of files.

    Args:
        folder: Where they lie; those that are there already are used.
        frames: Frames to draw, and frames of the file, by the size's name.
        live: Size of the live video, one of these.
    """

    def __init__(self, folder: Path, frames: dict[str, tuple[int, int]], live: str) -> None:
        self._folder, self._frames, self._live = folder, frames, live
        self._pool = ProcessPoolExecutor(len(frames), mp_context=get_context("spawn"))
        self._written: dict[str, Future[None]] = {
            size: self._pool.submit(
                _write, self._part(size), self.path(size), self.live if size == live else None, SIZES_HW[size], *counts
            )
            for size, counts in frames.items()
        }

    def _part(self, size: str) -> Path:
        return self._folder / f"reach_{size}_{self._frames[size][0]}.mp4"

    def path(self, size: str) -> Path:
        """The file of a size, as it will be."""
        return self._folder / f"reach_{size}_{'of'.join(map(str, self._frames[size]))}.mp4"

    @property
    def live(self) -> Path:
        """The live video, as it will be: H.264 in FLV, without B frames, to be sent again and again."""
        return self._folder / f"reach_live_{self._live}_{self._frames[self._live][0]}.flv"

    def get(self, size: str) -> Path:
        """The file of a size, once it is written."""
        self._written[size].result()
        return self.path(size)

    def get_live(self) -> Path:
        """The live video, once it is written."""
        self._written[self._live].result()
        return self.live

    def describe(self, size: str) -> VideoFile:
        """What a file holds."""
        drawn, frames = self._frames[size]
        mbit_s = self.get(size).stat().st_size * 8 * FPS / frames / 1e6
        return VideoFile(size, SIZES_HW[size], frames, drawn, round(mbit_s, 2))

    def bytes_per_frame(self, size: str) -> float:
        """Bytes of H.264 of a frame."""
        return self.get(size).stat().st_size / self._frames[size][1]

    def __enter__(self) -> Videos:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def _write(part: Path, path: Path, live: Path | None, size_hw: tuple[int, int], drawn: int, frames: int) -> None:
    """Write the files of a size that are not there."""
    if not part.exists():
        traffic.write_video(part, size_hw=size_hw, frames=drawn, seed=_SEED)
    if live is not None and not live.exists():
        write_live(part, live)
    if not path.exists():
        repeat(part, path, frames // drawn)


def repeat(part: Path, path: Path, times: int) -> None:
    """Write a file with all packets of a video, again and again; its frames have the times of one long video."""
    partial = path.with_suffix(".partial")
    with av.open(str(part)) as source, av.open(str(partial), "w", format="mp4") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        packets = [packet for packet in source.demux(stream) if packet.size]
        assert stream.time_base is not None
        length = round(len(packets) / FPS / stream.time_base)
        for number, packet in itertools.product(range(times), packets):
            again = av.Packet(bytes(packet))
            again.stream, again.time_base, again.is_keyframe = copy, stream.time_base, packet.is_keyframe
            assert packet.pts is not None
            assert packet.dts is not None
            again.pts, again.dts = packet.pts + number * length, packet.dts + number * length
            again.duration = packet.duration
            target.mux(again)
    partial.replace(path)


def write_live(part: Path, path: Path, bit_rate: int = _LIVE_BIT_RATE) -> None:
    """Encode a video as cameras do: no B frames, so that a decoder need not hold frames back, and no slices.

    `bit_rate` is that of 1080p; other sizes have it by their pixels.
    """
    partial = path.with_suffix(".partial")
    with (
        av.open(str(part)) as source,
        av.open(str(partial), "w", format="flv", options={"flvflags": "no_duration_filesize"}) as target,
    ):
        shown = source.streams.video[0]
        stream = target.add_stream("libx264", rate=int(FPS), options={"preset": "veryfast", "x264-params": "bframes=0"})
        stream.height, stream.width, stream.pix_fmt = shown.height, shown.width, "yuv420p"
        context = stream.codec_context
        context.max_b_frames, context.gop_size = 0, _LIVE_GROUP
        context.bit_rate = bit_rate * shown.height * shown.width // (1080 * 1920)
        for number, picture in enumerate(source.decode(shown)):
            picture.pts, picture.time_base = number, Fraction(1, int(FPS))
            picture.pict_type = PictureType.NONE  # the encoder's own choice
            target.mux(stream.encode(picture))
        target.mux(stream.encode(None))
    partial.replace(path)
