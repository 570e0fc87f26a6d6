"""Videos, cameras and network streams, decoded by FFmpeg."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, TypeVar

import av
import av.error
import av.video.reformatter
import numpy as np

from maskjet import limits
from maskjet.errors import FrameError, SourceError, border, explain
from maskjet.media.colours import guess_matrix, read_look
from maskjet.media.source import Frame, Source
from maskjet.media.timeline import Timeline, announced_end_s, stated_packets, states_end

_OPEN_TIMEOUT_S, _READ_TIMEOUT_S = 10.0, 10.0
_DAMAGED = "its data are damaged"
_CONVERTING_THREADS = 4  # to RGB; FFmpeg's choice, 16 on 16 cores, makes decoding at 720p a fifth slower
_CAMERA = re.compile(r"/dev/video\d+")
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_PROTOCOLS = "http,https,httpproxy,tls,tcp,udp,rtp,srtp,rtsp,rtmp,rtmps,rtmpt,rtmpe,srt,ftp,mmsh,mmst,crypto,data"
_NAMING_OTHERS = {"concat", "dash", "hls", "image2", "imf", "lavfi", "mlv", "sdp", "vobsub", "webm_dash_manifest"}
"""Formats whose files name other files, or are read together with sibling files."""

# Titles may be in any encoding; PyAV 19 reads such titles by itself and has no such argument.
_METADATA: Any = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
_T = TypeVar("_T")


def is_stream(text: str) -> bool:
    """Whether a source's name is a camera or a URL rather than a file's path."""
    return bool(_CAMERA.fullmatch(text) or _URL.match(text))


def files_of(text: str) -> list[Path]:
    """The files that a video's name refers to, as far as the name tells."""
    if is_stream(text):  # FFmpeg's protocols can be nested, as in async:file:///a.mp4
        return [Path(found) for found in re.findall(r"file:([^|]+)", text)]
    return [Path(text)]


class VideoSource(Source):
    """A video file, camera or network stream, decoded by FFmpeg, upright.

    Damage loses the damaged frame and those that can't be shown without it. A run of frames whose packets are missing
    is one entry in `bad_frames`, with their number, so that every frame keeps the index it has in the whole file.
    Frames predicted from a damaged one are shown as FFmpeg decodes them, with traces of the damage up to the next key
    frame. A file that ends before its stated frame count or duration gets one more entry in `bad_frames`, for its end;
    see `states_end`.

    If the number of missing frames is unknown, the entry says so and `index_is_exact` is False from there on. This is
    always so in raw streams, whose packets have no times, and in an AVI without its index. In other files it happens
    after damage if the frame rate varies or times are damaged as well, and if the file begins inside a frame or without
    a key frame.

    A loss goes unnoticed if the rest looks like a whole file: if it was cut to begin with a key frame, if a packet was
    removed together with its header, or if it ends too early by less than a gap elsewhere.

    Files that refer to other files, such as playlists, are refused. URLs are read over network protocols only.

    Args:
        name: Path, device file or URL.

    Raises:
        SourceError: The source can't be opened, has no video, or has no frame that can be decoded.
    """

    kind = "video"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.files = files_of(name)
        self._is_reading = threading.Lock()
        self._is_closed = False
        self._frames = self._decoded()
        self._first = _interruptible(self._open) if is_stream(name) else self._open()

    def _open(self) -> Frame:
        """Open the source and decode its first frame."""
        self._container = _open_container(self.name)
        try:
            with _border(self.name):
                self._take_facts()
            first = self._next()
        except BaseException:
            self.close()
            raise
        if first is None:
            self.close()
            raise SourceError(f"source must have a frame that can be decoded, {self.name!r} has none.")
        self.size_hw = (first.image.shape[0], first.image.shape[1])
        return first

    def _take_facts(self) -> None:
        container = self._container
        self._stream = stream = container.streams.video[0]
        self.is_live = bool(_CAMERA.fullmatch(self.name)) or (is_stream(self.name) and container.duration is None)
        stream.thread_type = "SLICE" if self.is_live else "AUTO"  # a thread per frame is faster, but adds latency
        rate = stream.average_rate
        self.fps = float(rate) if rate else None
        self.length = None if self.is_live else self._announced_length(rate)
        self.states_end = not self.is_live and states_end(container, stream)
        self._to_rgb = av.video.reformatter.VideoReformatter()
        self._timeline = Timeline(container, stream, None if is_stream(self.name) else Path(self.name))
        self.index_is_exact = not self._timeline.lacks_index
        self._due: list[int] = []  # a heap: presentation times of packets without a frame yet
        self._given_up: set[int] = set()  # presentation times of frames counted as lost
        # The decoder's last report of damage; FFmpeg's HEVC decoder reports none, so damage is assumed.
        self._damage = _DAMAGED if stream.codec_context.name == "hevc" else None
        self._stated_s = announced_end_s(container, stream)
        self._stated_packets = stated_packets(container, stream)
        self._packets_seen = 0
        self._missing = 0
        self._end_s = 0.0
        self._end_of_all_s = 0.0

    def _announced_length(self, rate: Fraction | None) -> int | None:
        if self._stream.frames:
            return self._stream.frames
        if self._container.duration and rate:
            return round(self._container.duration / av.time_base * rate)
        return None

    def _read(self) -> Iterator[Frame]:
        yield self._first
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        with self._is_reading:
            try:
                with _border(self.name):
                    return None if self._is_closed else next(self._frames, None)
            finally:
                if self._is_closed:
                    self._container.close()

    def close(self) -> None:
        """Close the file or device; may be called twice, and while another thread reads, whose frames then end."""
        self._is_closed = True
        if self._is_reading.acquire(blocking=False):  # else FFmpeg is in use, and the reading thread closes it
            try:
                self._container.close()
            finally:
                self._is_reading.release()

    def _decoded(self) -> Iterator[Frame]:
        for packet in self._packets(self._container, self._stream):
            self._timeline.see(packet)
            if packet.time_base:
                self._end_of_all_s = max(self._end_of_all_s, _end_s(packet))
            if packet.stream_index != self._stream.index:
                continue
            self._packets_seen += packet.pos is not None
            if not packet.size and packet.dts is None:  # the final, empty packet, which drains the decoder
                self._timeline.end(is_cut=self._missing_at_end() > 0, states_end=self.states_end)
            if packet.size and packet.pts is not None and not packet.is_discard:
                heappush(self._due, packet.pts)
                self._end_s = max(self._end_s, _end_s(packet))
            for picture in self._decode(packet):
                yield from self._show(picture)
        if self._due and not self.is_live:
            yield from self._decoded_end()
        self._miss_before(None)
        self._miss_end()

    def _decoded_end(self) -> Iterator[Frame]:
        """Decode the frames still due again, without frame threads: at damage PyAV stops draining those."""
        with _open_container(self.name) as container:
            stream = container.streams.video[0]
            stream.thread_type = "SLICE"
            container.seek(self._due[0], stream=stream)
            for packet in self._packets(container, stream):
                if packet.stream_index != stream.index:
                    continue
                for picture in self._decode(packet):
                    if self._due and picture.pts is not None and picture.pts >= self._due[0]:
                        yield from self._show(picture)

    def _packets(self, container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[av.Packet[Any]]:
        """Packets of all streams (live: of the video) to the end or a read error, then one that drains the decoder."""
        packets: Iterator[av.Packet[Any]] = container.demux(stream) if self.is_live else container.demux()
        try:
            yield from packets
        except av.error.FFmpegError as error:
            if self.is_live:
                raise FrameError(f"{self.name!r} broke off: {_reason(error)}.", index=self.frames_seen) from error
            self._damage = _reason(error)
            drain: av.Packet[Any] = av.Packet()
            drain.stream = stream
            yield drain

    def _decode(self, packet: av.Packet[Any]) -> list[av.VideoFrame]:
        """The pictures the decoder returns after a packet; none if it finds damage."""
        try:
            return packet.decode()
        except av.error.FFmpegError as error:
            self._damage = _reason(error)
            self._timeline.suspect()
            if packet.size and packet.pts is None:  # not in `_due`: counted here
                self._skip(f"{self.name}: {self._damage}")
            return []

    def _show(self, picture: av.VideoFrame) -> Iterator[Frame]:
        """Yield a decoded picture as a frame, unless it is damaged or was already counted as lost."""
        if picture.pts in self._given_up:
            return
        self._miss_before(picture.pts)
        if picture.is_corrupt and picture.pts is not None:
            self._timeline.suspect(picture.pts)
        self._place(picture.pts)
        if picture.is_corrupt:
            self._damage = _DAMAGED
            self._skip(f"{self.name}: {self._damage}")
            return
        limits.check("image_pixels", picture.width * picture.height, f"a frame of {self.name!r} has", SourceError)
        if self.look is None:
            self.look = read_look(picture, self._stream.sample_aspect_ratio)
        matrix = guess_matrix(picture)
        rgb = self._to_rgb.reformat(picture, format="rgb24", src_colorspace=matrix, threads=_CONVERTING_THREADS)
        pixels = np.asarray(rgb.to_ndarray(), dtype=np.uint8)
        image = np.ascontiguousarray(np.rot90(pixels, round(picture.rotation / 90)))
        index = self.frames_seen
        self.frames_seen += 1
        name = f"{self.name}#{index}"
        yield Frame(index, picture.time, image, self.name, name, index_is_exact=self.index_is_exact)

    def _miss_before(self, pts: int | None) -> None:
        """Count the packets due before `pts`, or the end if None, as lost frames if there is damage.

        Without damage they are no frames but second fields, or pictures that are never shown.
        """
        while self._due and (pts is None or self._due[0] <= pts):
            due = heappop(self._due)
            if due != pts and (self._damage is not None or self._timeline.is_suspect(due, due)):
                self._timeline.suspect(due)
                self._place(due)
                self._given_up.add(due)
                self._skip(f"{self.name}: {self._damage or _DAMAGED}")

    def _place(self, pts: int | None) -> None:
        """Count the frames whose packets are missing before a frame that is shown or lost."""
        if self.is_live:  # frames are numbered as they arrive
            return
        if pts is None or self._stream.time_base is None:
            self.index_is_exact = False
            return
        gap = self._timeline.place(pts, has_damage=bool(self.bad_frames))
        self.index_is_exact &= not self._timeline.is_doubtful
        if gap is not None and (gap.count or self.index_is_exact):  # an unknown number is reported once
            self._miss(gap.count, gap.is_exact, f"before {float(pts * self._stream.time_base):.2f} s")

    def _missing_at_end(self) -> int:
        """Number of frames the file states beyond its actual end."""
        if self.is_live:
            return 0
        if self._stated_packets:
            return max(self._stated_packets - self._packets_seen - self._missing, 0)
        if self._stated_s or not (self.states_end and self._container.duration):
            return self._timeline.frames_in(self._stated_s - self._end_s)
        return self._timeline.frames_in(self._container.duration / av.time_base - self._end_of_all_s)

    def _miss_end(self) -> None:
        """Count the frames that are missing at the end."""
        count = self._missing_at_end()
        if count > 0:
            stated_s = self._stated_s or (self._container.duration or 0) / av.time_base
            is_exact = bool(self._stated_packets) or self._timeline.is_constant
            self._miss(count, is_exact, f"at the end: the video breaks off at {self._end_s:.2f} of {stated_s:.2f} s")

    def _miss(self, count: int, is_exact: bool, where: str) -> None:
        """Record a run of frames whose packets are missing."""
        how_many = f"{count} frame{'s'[: count > 1]}"
        if not is_exact:
            how_many = f"about {how_many}" if count else "an unknown number of frames"
        self.index_is_exact &= is_exact
        self._missing += count
        self._skip(f"{self.name}: {how_many} missing {where}", count)


@contextmanager
def _border(name: str) -> Iterator[None]:
    """Turn errors of FFmpeg and PyAV into a SourceError that names the video."""
    message = f"source must be an image, video or stream, {name!r} can't be read"
    with border(SourceError, message):
        try:
            yield
        except av.error.FFmpegError as error:
            raise SourceError(f"{message}: {_reason(error)}.") from error


def _reason(error: av.error.FFmpegError) -> str:
    if isinstance(error, av.error.ExitError):
        return f"nothing came for {_READ_TIMEOUT_S:.0f} s"
    return explain(error)


def _interruptible(work: Callable[[], _T]) -> _T:
    """Run work that may wait for the network in a thread: FFmpeg ignores signals, so Ctrl-C would have to wait."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    done: Future[_T] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=do, name="maskjet-open", daemon=True).start()
    return done.result()


def _open_container(name: str) -> av.container.InputContainer:
    is_camera = bool(_CAMERA.fullmatch(name))
    options = {"max_pixels": str(limits.image_pixels), "format_whitelist": _formats()}
    if not is_camera:
        options["protocol_whitelist"] = _PROTOCOLS if is_stream(name) else "file"
    if name.startswith("rtsp:"):
        options["rtsp_transport"] = "tcp"
    with _border(name):
        container: av.container.InputContainer = av.open(
            name if is_stream(name) else f"file:{name}",  # with the protocol, or "12:00.mp4" would be read as one
            format="v4l2" if is_camera else None,
            options=options,
            timeout=(_OPEN_TIMEOUT_S, _READ_TIMEOUT_S),
            **_METADATA,
        )
    try:
        _check(container, name)
    except BaseException:
        container.close()
        raise
    return container


@cache
def _formats() -> str:
    """All formats that FFmpeg reads, except `_NAMING_OTHERS`."""
    return ",".join(sorted(av.formats_available - _NAMING_OTHERS))


def _check(container: av.container.InputContainer, name: str) -> None:
    """Raise if there is no decodable video or its frames are too large, before memory is allocated for one."""
    if not container.streams.video:
        raise SourceError(f"source must contain video, {name!r} contains none.")
    context = container.streams.video[0].codec_context
    if context is None:
        raise SourceError(f"source must be of a codec that FFmpeg decodes, {name!r} is of an unknown one.")
    limits.check("image_pixels", context.width * context.height, f"a frame of {name!r} has", SourceError)
    context.options = {"max_pixels": str(limits.image_pixels)}  # a stream may change its size


def _end_s(packet: av.Packet[Any]) -> float:
    """End of a packet's presentation, in seconds."""
    return float(((packet.pts or 0) + (packet.duration or 0)) * packet.time_base)
