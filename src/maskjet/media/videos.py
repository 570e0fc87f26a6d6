"""Videos, cameras and network streams, decoded by FFmpeg."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import av
import av.error
import av.video.reformatter
import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.errors import FrameError, InputError, SourceError, UnsupportedError, device_error
from maskjet.media.colours import FULL_RANGE, guess_matrix, read_look
from maskjet.media.containers import (
    border_of_ffmpeg,
    cause_of,
    files_of,
    interruptible,
    is_camera,
    is_stream,
    live_packets,
    open_container,
    reason,
    shown_name,
)
from maskjet.media.decoding import ON_CPU, Decoding, download, why_not_decoded, why_not_kept
from maskjet.media.selection import EVERYTHING, BeyondEndError, Selection
from maskjet.media.skipping import CannotSkipError, PacketSkipper, check_is_whole
from maskjet.media.source import Frame, Source
from maskjet.media.timeline import Timeline, announced_end_s, stated_packets, states_end

if TYPE_CHECKING:
    from maskjet.media.picture import Picture

_DAMAGED = "its data are damaged"
_T = TypeVar("_T")
_CONVERTING_THREADS = 4  # to RGB; FFmpeg's choice, 16 on 16 cores, makes decoding at 720p a fifth slower


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

    With a selection, frames that are left out are counted, but not converted to RGB, and where the container and codec
    allow it, those before the start are not even decoded: the frames given are the same, bit for bit. What is damaged
    or missing before the first frame given is not reported.

    Args:
        name: Path, device file or URL.
        selection: Frames to give; a live source has no start.
        decoding: Where it is decoded. A GPU does not notice damage inside of a frame's data, and shows other traces.

    Raises:
        SourceError: The source can't be opened, has no video, or has no frame that can be decoded.
        BeyondEndError: The source ends before the selection's start.
        InputError: The selection has a start that the source can't have.
        DeviceError: The GPU failed; also while frames are read.
    """

    kind = "video"
    _stop = math.inf  # index at which reading ends

    def __init__(self, name: str, selection: Selection = EVERYTHING, decoding: Decoding = ON_CPU) -> None:
        super().__init__(shown_name(name))
        self._url = name
        self.files = files_of(name)
        self._selection = selection
        self._is_reading = threading.Lock()
        self._may_skip = selection.starts_late
        self._may_wait = is_stream(name)
        self._decoding = decoding
        self._first = self._run(self._open)

    def _open(self) -> Frame | None:
        """Open the source and decode the first frame to give."""
        self._container = self._open_container()
        self._frames = self._decoded()
        try:
            with border_of_ffmpeg(self.name):
                self._take_facts()
            first = self._next()
        except CannotSkipError:
            self._may_skip = False
            return self._reopen(self._decoding)
        except BaseException:
            self.close()
            raise
        if self._is_on_gpu and not self._may_wait and (first is None or self.fallback is not None):
            self.fallback = self.fallback or "the GPU decodes none of its frames"
            return self._reopen(ON_CPU)  # which has threads, and converts faster
        if first is None:
            self._take_no_frame()
            return None
        self.size_hw = first.size_hw
        self._take_start(first.index)
        return first

    def _open_container(self) -> av.container.InputContainer:
        """Open the container for the device that is to decode it; a file is opened twice for a GPU."""
        wanted = self._decoding
        if not self._may_wait and wanted.device != "cpu":
            container = open_container(self._url)
            context = container.streams.video[0].codec_context
            if wanted.is_worth_it(context.width, context.height):
                self.fallback = why_not_decoded(context)
                if self.fallback is None:
                    container.close()
                    return self._open_on_gpu()
            self._decoding = ON_CPU
            return container
        if wanted.is_worth_it():
            return self._open_on_gpu()
        self._decoding = ON_CPU
        return open_container(self._url)

    def _open_on_gpu(self) -> av.container.InputContainer:
        """Open the container for a GPU, or for the CPU if the GPU can't decode it."""
        try:
            with self._decoding.accelerated() as hwaccel:
                from maskjet.media.surfaces import SurfaceCopier  # PyTorch

                self._copier = SurfaceCopier(self._decoding.device)
                container = open_container(self._url, hwaccel)
        except (SourceError, UnsupportedError, RuntimeError) as error:
            self.fallback = f"the GPU's decoder can't be opened: {cause_of(error)}"
        else:
            self.fallback = why_not_decoded(container.streams.video[0].codec_context)
            if self.fallback is None:
                return container
            container.close()
        self._decoding = ON_CPU
        return open_container(self._url)

    @property
    def _is_on_gpu(self) -> bool:
        return self._decoding is not ON_CPU

    def _reopen(self, decoding: Decoding) -> Frame | None:
        """Open the source once more, after another decision."""
        self._close_container()
        self._decoding = decoding
        self.frames_seen, self.bad_frames, self.look, self.index_is_exact = 0, [], None, True
        return self._open()

    def _take_no_frame(self) -> None:
        """Refuse a source that has no frame to give."""
        self.close()
        if self._selection.starts_late and self.frames_seen and self._start_is_beyond():
            raise BeyondEndError(self.name, self._selection.shown_start, self.frames_seen)
        raise SourceError(f"source must have a frame that can be decoded, {self.name!r} has none.")

    def _start_is_beyond(self) -> bool:
        return self._start is None or self._start >= self.frames_seen

    def _take_start(self, index: int) -> None:
        """Adapt the facts to the selection, now that the first frame's index is known."""
        start = self._selection.start if self._selection.start_s is None else index
        self.length = replace(self._selection, start=start, start_s=None).count(self.length)
        self.fps = self.fps and self.fps / self._selection.every

    def _take_facts(self) -> None:
        """Read what the container states, and prepare decoding."""
        container = self._container
        self._stream = stream = container.streams.video[0]
        self.is_live = is_camera(self._url) or (self._may_wait and container.duration is None)
        stream.thread_type = "SLICE" if self.is_live else "AUTO"  # a thread per frame is faster, but adds latency
        self.decoder = self._decoding.device
        if self._is_on_gpu:
            stream.codec_context.thread_count = 1
        rate = stream.average_rate
        self.fps = float(rate) if rate else None
        if self.is_live and self._selection.starts_late:
            raise InputError(f"start must be 0 for {self.name!r}, which is live, got {self._selection.shown_start}.")
        self.length = None if self.is_live else self._announced_length(rate)
        self.states_end = not self.is_live and states_end(container, stream)
        self._has_decoder = False  # on a GPU it is made when the first pictures are decoded
        self._to_rgb = av.video.reformatter.VideoReformatter()
        self._timeline = self._new_timeline()
        self.index_is_exact = not self._timeline.lacks_index
        self._skipper = PacketSkipper(stream, self._selection, self._new_timeline()) if self._may_skip else None
        self._cut: int | None = None  # presentation time from which on frames are decoded, until one is
        self._skipped_to: int | None = None  # presentation time of the last frame skipped
        self._start: int | None = self._selection.start if self._selection.start_s is None else None
        self._start_s = float((stream.start_time or 0) * (stream.time_base or 0))
        self._has_damage = False  # even if it is not reported, as it lies before the first frame given
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

    def _new_timeline(self) -> Timeline:
        return Timeline(self._container, self._stream, None if self._may_wait else Path(self._url))

    def _announced_length(self, rate: Fraction | None) -> int | None:
        if self._stream.frames:
            return self._stream.frames
        if self._container.duration and rate:
            return round(self._container.duration / av.time_base * rate)
        return None

    def _read(self) -> Iterator[Frame]:
        frame, given = self._first, 0
        while frame is not None:
            yield frame
            given += 1
            frame = None if given == self._selection.limit else self._run(self._next)

    def _run(self, work: Callable[[], _T]) -> _T:
        return interruptible(self._url, work) if self._may_wait else work()

    def _next(self) -> Frame | None:
        with self._is_reading:
            try:
                with border_of_ffmpeg(self.name):
                    return None if self._is_closed else next(self._frames, None)
            finally:
                if self._is_closed:
                    self._close_container()

    def close(self) -> None:
        """Close the file or device; may be called twice, and while another thread reads, whose frames then end."""
        self._is_closed = True
        if self._is_reading.acquire(blocking=False):  # else FFmpeg is in use, and the reading thread closes it
            try:
                self._close_container()
            finally:
                self._is_reading.release()

    def _close_container(self) -> None:
        """Close it and free its decoder, which its stream and the pictures that are not shown yet keep."""
        with self._decoding.alone():
            self._container.close()
            for keeper in ("_frames", "_stream", "_timeline", "_skipper"):
                vars(self).pop(keeper, None)

    def _decoded(self) -> Iterator[Frame]:
        for packet in self._packets(self._container, self._stream):
            for ready in (packet,) if self._skipper is None else self._skip_ahead(self._skipper, packet):
                if self._see(ready):
                    for picture in self._decode(ready):
                        yield from self._show(picture)
                        if self.frames_seen >= self._stop:
                            return
        if self._due and not self.is_live:
            yield from self._decoded_end()
        self._miss_before(None)
        self._miss_end()

    def _see(self, packet: av.Packet[Any]) -> bool:
        """Record a packet of any stream, before it is decoded; returns whether it is the video's."""
        self._timeline.see(packet)
        end_s = _end_s(packet)
        self._end_of_all_s = max(self._end_of_all_s, end_s)
        if packet.stream_index != self._stream.index:
            return False
        self._packets_seen += packet.pos is not None
        if not packet.size and packet.dts is None:  # the final, empty packet, which drains the decoder
            self._timeline.end(is_cut=self._missing_at_end() > 0, states_end=self.states_end)
        is_shown = self._skipped_to is None or packet.pts is None or packet.pts > self._skipped_to
        if packet.size and packet.pts is not None and not packet.is_discard and is_shown:
            heappush(self._due, packet.pts)
            self._end_s = max(self._end_s, end_s)
        return True

    def _skip_ahead(self, skipper: PacketSkipper, packet: av.Packet[Any]) -> Sequence[av.Packet[Any]]:
        """Count the frames that need no decoding, and return the packets that do."""
        taken = skipper.take(packet)
        for dropped in taken.dropped:
            self._see(dropped)
        for pts in taken.skipped:
            while self._due and self._due[0] <= pts:
                heappop(self._due)
            self._skipped_to = pts
            self._place(pts)
            self.frames_seen += 1
        if taken.skipped and (self.bad_frames or not self.index_is_exact):
            raise CannotSkipError
        if taken.ready:
            self._skipper, self._cut = None, skipper.cut
        return taken.ready

    def _decoded_end(self) -> Iterator[Frame]:
        """Decode the frames still due again, without frame threads: at damage PyAV stops draining those."""
        with open_container(self._url) as container:
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
        try:
            yield from live_packets(container, stream) if self.is_live else container.demux()
        except av.error.FFmpegError as error:
            if self.is_live:
                raise FrameError(f"{self.name!r} broke off: {reason(error)}.", index=self.frames_seen) from error
            self._damage = reason(error)
            drain: av.Packet[Any] = av.Packet()
            drain.stream = stream
            yield drain

    def _decode(self, packet: av.Packet[Any]) -> list[av.VideoFrame]:
        """The pictures the decoder returns after a packet; none if it finds damage."""
        try:
            with nullcontext() if self._has_decoder else self._decoding.alone():
                pictures = packet.decode()
        except av.error.FFmpegError as error:
            self._damage = reason(error)
            self._timeline.suspect()
            if packet.size and packet.pts is None:  # not in `_due`: counted here
                self._skip(f"{self.name}: {self._damage}")
            return []
        self._has_decoder |= bool(pictures)
        return pictures

    def _show(self, picture: av.VideoFrame) -> Iterator[Frame]:
        """Yield a decoded picture as a frame, unless it is damaged or was already counted as lost."""
        if picture.pts in self._given_up:
            return
        if self._cut is not None:
            if picture.pts is not None and picture.pts < self._cut:
                return
            check_is_whole(picture, self._cut)
            self._cut = None
        self._miss_before(picture.pts)
        if picture.is_corrupt and picture.pts is not None:
            self._timeline.suspect(picture.pts)
        self._place(picture.pts)
        if picture.is_corrupt:
            self._damage = _DAMAGED
            self._skip(f"{self.name}: {self._damage}")
            return
        index = self.frames_seen
        self.frames_seen += 1
        if not self._is_wanted(index, picture.time):
            return
        limits.check("image_pixels", picture.width * picture.height, f"a frame of {self.name!r} has", SourceError)
        if self.look is None:
            self.look = read_look(picture, self._stream.sample_aspect_ratio)
        name = f"{self.name}#{index}"
        pixels = self._pixels_of(picture, index)
        yield Frame(index, picture.time, pixels, self.name, name, index_is_exact=self.index_is_exact)

    def _pixels_of(self, picture: av.VideoFrame, index: int) -> NDArray[np.uint8] | Picture:
        """The pixels of a decoded picture, upright: where they are if a GPU decoded it, else as RGB."""
        matrix, host = guess_matrix(picture), picture
        if self._is_on_gpu:
            why_not = why_not_kept(picture)
            if why_not is None:
                from maskjet.media.picture import Picture, conversion_of  # PyTorch

                is_full_range = picture.color_range == FULL_RANGE
                conversion = conversion_of(matrix or int(picture.colorspace), is_full_range=is_full_range)
                try:
                    return Picture(self._copier.copy(picture), conversion)
                except RuntimeError as error:
                    raise device_error(f"frame {index} of {self.name!r}", index, error) from error
            self.fallback = self.fallback or why_not
            if picture.format.name == "cuda":
                host = download(picture)
            else:
                self.decoder = "cpu"
        rgb = self._to_rgb.reformat(host, format="rgb24", src_colorspace=matrix, threads=_CONVERTING_THREADS)
        pixels = np.asarray(rgb.to_ndarray(), dtype=np.uint8)
        return np.ascontiguousarray(np.rot90(pixels, round(picture.rotation / 90)))

    def _is_wanted(self, index: int, time_s: float | None) -> bool:
        """Whether a frame is given; the first one that is ends the search for the start."""
        if self._start is None:
            if time_s is None:
                raise InputError(f"start must be a number of frames for {self.name!r}, whose frames have no times.")
            if not self._selection.is_late_enough(time_s - self._start_s):
                return False
            self._start = index
        if self.look is None and index >= self._start and self.bad_frames:  # the first one
            self._has_damage |= bool(self.bad_frames)
            self.bad_frames = [bad for bad in self.bad_frames if bad[0] >= self._start]
        return index >= self._start and (index - self._start) % self._selection.every == 0

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
        gap = self._timeline.place(pts, has_damage=self._has_damage or bool(self.bad_frames))
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
        self._missing += count
        super()._miss(count, is_exact, where)


def _end_s(packet: av.Packet[Any]) -> float:
    """End of a packet's presentation, in seconds; 0 if it has no clock."""
    tick, end = packet.time_base, (packet.pts or 0) + (packet.duration or 0)
    return end * tick.numerator / tick.denominator if tick else 0.0  # as a Fraction it takes four times as long
