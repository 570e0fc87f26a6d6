"""Annotated video as output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from maskjet.detections import Detections
from maskjet.drawing import DrawStyle, Painter, Redaction, Style
from maskjet.host.files import TemporaryFile, naming
from maskjet.outputs.audio import AudioTrack, open_audio
from maskjet.outputs.drawing_threads import MOST_WAITING, DrawingThreads
from maskjet.outputs.encoders import DEFAULT_QUALITY, add_stream, share_cores
from maskjet.outputs.nv12 import Weights, to_nv12, weights_of
from maskjet.outputs.sink import Sink
from maskjet.sources.colours import PictureFormat, guess_picture_format
from maskjet.sources.frames import Frame, Source

_FRAGMENTS = {
    "movflags": "frag_keyframe+empty_moov+default_base_moof+hybrid_fragmented",  # hybrid: not fragmented once finished
    "frag_duration": "1000000",
    "flush_packets": "1",
}
_CONTAINERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    ".mp4": ("mp4", _FRAGMENTS),
    ".mkv": ("matroska", {"cluster_time_limit": "1000", "flush_packets": "1"}),
    ".mov": ("mov", _FRAGMENTS),
    ".webm": ("webm", {"cluster_time_limit": "1000", "flush_packets": "1"}),
}
"""FFmpeg's format and options by suffix; files stay playable while being written, up to the last second."""
SUFFIXES = tuple(_CONTAINERS)

_DEFAULT_FPS = 30.0
_LOWEST_FPS, _HIGHEST_FPS = 0.001, 1000.0  # rates outside are ignored
_LONGEST_GAP_S = 3600.0  # longer gaps are clock jumps; an MP4 holds 13 hours
_CLOCK_HZ = 90_000  # ticks of a video's timestamps, as in MPEG
_MOST_THREADS = 4  # drawing threads
MOST_BEHIND = _MOST_THREADS + MOST_WAITING
"""Most frames, counted back from the last one written, that may not be encoded yet."""


class AnnotatedVideo(Sink):
    """H.264 video, in .webm VP9, of the frames with their detections drawn in, redacted or cut out.

    The video starts at 0 and keeps the frames' intervals in time. If there is no clock, or it jumps (back to another
    video's start, or more than an hour ahead), frames follow at the source's rate. The first frame sets the size; an
    odd side loses its last row or column. Frames of another size are letterboxed. Colours are encoded and tagged like
    the source's; if it states none, as BT.709 for HD and BT.601 below.

    Frames are drawn by half as many threads as encode, up to seven frames behind. x264 holds back one frame more than
    it has threads, VP9 24 frames. MP4 and QuickTime are fragmented while they are written, so that after a crash all
    plays but the last second and these frames, 16 at most. `close` ends them with an index of the whole file.

    Args:
        path: Path of the .mp4, .mkv, .mov or .webm file.
        source: Source whose rate, colours, pixel aspect ratio and audio the video gets; all but the first are read with
            the first frame. None for 30 frames per second where frames have no times.
        with_audio: Whether the source's audio is copied; see `audio.AudioTrack`.
        style: Whether frames are annotated, redacted or cut out, and how.
        quality: Quality; see `encoders.add_stream`.
        threads: Threads of the encoder; None for one per usable core, at most 8.
        overwrites_frames: As in `Painter`.
    """

    _stream: av.VideoStream  # set when the container is opened, as the next
    _weights: Weights

    def __init__(
        self,
        path: str,
        *,
        source: Source | None = None,
        with_audio: bool = True,
        style: Style = DrawStyle(),
        quality: int = DEFAULT_QUALITY,
        threads: int | None = None,
        overwrites_frames: bool = False,
    ) -> None:
        self._path = path
        self._painter = Painter(style, overwrites=True, overwrites_frames=overwrites_frames)
        self.redacts = isinstance(style, Redaction)
        self._source = source
        fps = (source and source.fps) or _DEFAULT_FPS
        self._fps = fps if _LOWEST_FPS <= fps <= _HIGHEST_FPS else _DEFAULT_FPS
        self._temporary: TemporaryFile | None = TemporaryFile(path)
        self._format, self._options = _CONTAINERS[Path(path).suffix.lower()]
        self._container: av.container.OutputContainer | None = None
        self._quality, self._encoder_threads = quality, threads or share_cores(1)
        self._threads = DrawingThreads(min(max(self._encoder_threads // 2, 1), _MOST_THREADS))
        self._pictures: list[av.VideoFrame] = []  # free picture buffers; encoders copy them
        self._audio: list[AudioTrack] = []
        self._with_audio = with_audio
        self._packets = 0
        self._source_s: float | None = None  # source time of the last frame
        self._tick = -1
        self._gap_s = 0.0  # seconds between the last two frames
        self.paths = (self._temporary.shown,)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Queue one frame for drawing and encoding in threads; its image must not change afterwards."""
        self._threads.add(lambda: self._write(frame, detections))

    def _write(self, frame: Frame, detections: Detections) -> Iterator[None]:
        draw = self._painter.prepare(frame, detections)
        if self._container is None:
            with naming(self._path):
                assert self._temporary is not None
                self._start(self._temporary, frame)
        yield
        picture = self._to_picture(draw())
        yield
        with naming(self._path):
            picture.pts, picture.time_base = self._next_tick(frame.time_s), Fraction(1, _CLOCK_HZ)
            assert self._temporary is not None
            self._encode(self._temporary, picture)
        self._pictures.append(picture)

    def _to_picture(self, drawn: NDArray[np.uint8]) -> av.VideoFrame:
        height, width = self._stream.height, self._stream.width
        try:
            picture = self._pictures.pop()
        except IndexError:
            picture = av.VideoFrame(width, height, "nv12")
        picture.make_writable()  # copies if an encoder still references it
        buffers: Any = picture.planes
        planes = (np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size) for plane in buffers)
        to_nv12(_fit(drawn, height, width), self._weights, width, *planes)
        return picture

    def _encode(self, temporary: TemporaryFile, picture: av.VideoFrame | None) -> None:
        """Encode a picture, or drain the encoder if None, and flush the packets to the file."""
        assert self._container is not None
        try:
            for packet in self._stream.encode(picture):
                if packet.pts is not None and packet.time_base:
                    for track in self._audio:
                        track.mux_until(self._container, float(packet.pts * packet.time_base))
                self._container.mux(packet)
                self._packets += 1
            if picture is None:
                for track in self._audio:
                    track.mux_until(self._container, self._tick / _CLOCK_HZ + self._gap_s)
                self._close_audio()
            temporary.file.flush()
        except BaseException:
            self._give_up()  # FFmpeg crashes if called again after a failed header
            raise

    def _give_up(self) -> None:
        """Keep the partial file, or remove it if empty; may be called twice."""
        temporary, self._temporary = self._temporary, None
        if temporary is None:
            return
        temporary.keep()
        if not self._packets or not temporary.path.stat().st_size:
            temporary.remove()
            self.paths = ()
        self._close_audio()

    def _close_audio(self) -> None:
        for track in self._audio:
            track.close()

    def _next_tick(self, time_s: float | None) -> int:
        """Convert the source time of a frame to ticks since the first frame."""
        gap_s = 1 / self._fps
        if time_s is not None and self._source_s is not None and 0 < time_s - self._source_s <= _LONGEST_GAP_S:
            gap_s = time_s - self._source_s
        elif self._tick >= 0:  # a clock jump, which the audio does not have
            self._close_audio()
        self._source_s, self._gap_s = time_s, gap_s
        self._tick = 0 if self._tick < 0 else self._tick + max(round(gap_s * _CLOCK_HZ), 1)
        return self._tick

    def _start(self, temporary: TemporaryFile, first: Frame) -> None:
        if self._with_audio:
            self._audio = open_audio(self._source, self._path, self._format, first.time_s, self._options)
        options = self._audio[0].options if self._audio else self._options
        container = av.open(temporary.file, "w", format=self._format, options=dict(options))
        rate = Fraction(self._fps).limit_denominator(1001)
        height, width = (max(side - side % 2, 2) for side in first.size_hw)
        encoding = {"quality": self._quality, "threads": self._encoder_threads}
        self._stream = add_stream(container, (height, width), rate, **encoding)
        self._stream.codec_context.time_base = Fraction(1, _CLOCK_HZ)
        stated = self._source.picture_format if self._source is not None else None
        colours = stated or guess_picture_format((height, width))
        self._weights = weights_of(colours)
        _tag(self._stream.codec_context, colours)
        for track in self._audio:
            track.add_to(container)
        self._container = container

    def close(self) -> None:
        """Finish the file and give it its name; without frames there is no file, after an error a partial one."""
        if self._threads.is_closed:
            return
        error = self._threads.close()
        if error is not None:
            self._end()
            raise error
        if self._container is None:
            self._give_up()
            return
        assert self._temporary is not None
        with naming(self._path):
            try:
                self._finish_container(self._temporary)
                self._temporary.finish()
            except BaseException:
                self._give_up()
                raise
        self._temporary, self.paths = None, (self._path,)

    def _finish_container(self, temporary: TemporaryFile) -> None:
        assert self._container is not None
        self._encode(temporary, None)
        self._container.close()
        temporary.file.flush()

    def abandon(self) -> None:
        """Keep the partial file, playable, under its temporary name."""
        if not self._threads.is_closed:
            self._threads.close()
            self._end()

    def _end(self) -> None:
        """Keep the partial file; may be called twice."""
        if self._temporary is not None and self._container is not None:
            with suppress(OSError, av.error.FFmpegError):
                self._finish_container(self._temporary)
        self._give_up()


def _tag(context: av.VideoCodecContext, wanted: PictureFormat) -> None:
    context.colorspace, context.color_primaries, context.color_trc = wanted.matrix, wanted.primaries, wanted.transfer
    context.color_range = 2 if wanted.is_full_range else 1
    context.sample_aspect_ratio = wanted.pixel_aspect


def _fit(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Letterbox an image to a size; one of that size, or one row or column larger, is returned unchanged."""
    if 0 <= image.shape[0] - height <= 1 and 0 <= image.shape[1] - width <= 1:
        return image
    return np.array(ImageOps.pad(Image.fromarray(image), (width, height), Image.Resampling.BILINEAR))
