"""Videos, cameras and network streams, decoded by FFmpeg."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import av
import av.error
from av.video.frame import PictureType

from maskjet import limits
from maskjet.errors import FrameError, InputError, SourceError, UnsupportedError, device_error
from maskjet.sources.colours import read_picture_format
from maskjet.sources.containers import (
    cause_of,
    files_of,
    interruptible,
    is_camera,
    is_stream,
    live_packets,
    open_container,
    reason,
    shown_name,
    translate_ffmpeg_errors,
    video_of,
)
from maskjet.sources.conversion import PictureConverter
from maskjet.sources.decoding import ON_CPU, Decoding, why_not_decoded
from maskjet.sources.losses import Losses, announced_length
from maskjet.sources.selection import EVERYTHING, BeyondEndError, Selection
from maskjet.sources.source import Frame, Source
from maskjet.sources.video_index import MOST_PASSED, SEEKABLE, Entry, find_entry

if TYPE_CHECKING:
    from av.codec.hwaccel import HWAccel

    from maskjet.sources.fenced_urls import Resolve

_T = TypeVar("_T")


class CannotEnterError(SourceError):
    """A video can't be decoded from a key frame entry, only from its beginning."""


class VideoSource(Source):
    """A video file, camera or network stream, decoded by FFmpeg, upright.

    Every packet of the video that holds a frame is shown, or is an entry in `bad_frames`; an index counts the packets
    that are there. Frames predicted from a damaged one are shown as FFmpeg decodes them, with traces of the damage up
    to the next key frame.

    Packets that are missing are not counted. If damage is found next to a gap in time of more than 1.5 usual intervals,
    or the file ends before the end it states, one entry in `bad_frames` tells about how many are missing.

    Files that refer to other files, such as playlists, are refused. URLs are read over network protocols only.

    With a selection, frames that are left out are counted, but not converted to RGB, and where the container and codec
    allow it, those before the start are not even decoded: the frames given are the same, bit for bit. What is damaged
    or missing before the first frame given is not reported.

    Args:
        name: Path, device file or URL.
        selection: Frames to give; a live source has no start.
        decoding: Where it is decoded. A GPU does not notice damage inside of a frame's data, and shows other traces.
        resolve: Checks the host of a URL, see `maskjet.sources.fenced_urls`.

    Raises:
        SourceError: The source can't be opened, has no video, or has no frame that can be decoded.
        BeyondEndError: The source ends before the selection's start.
        InputError: The selection has a start that the source can't have.
        DeviceError: The GPU failed; also while frames are read.
    """

    kind = "video"
    _stop = math.inf  # index at which reading ends
    _entry: Entry | None = None

    def __init__(
        self, name: str, selection: Selection = EVERYTHING, decoding: Decoding = ON_CPU, resolve: Resolve | None = None
    ) -> None:
        super().__init__(shown_name(name))
        self._url, self._resolve = name, resolve
        self.files = files_of(name)
        self._selection = selection
        self._is_reading = threading.Lock()
        self._may_wait = is_stream(name)
        self._decoding = decoding
        self._first = self._run(self._open_at_start)

    def _open_at_start(self) -> Frame | None:
        """Open the source at the last key frame before the first selected frame, or at the beginning."""
        if self._selection.starts_late and not self._may_wait:
            self._entry = find_entry(self._url, self._selection)
        try:
            return self._open()
        except CannotEnterError:
            self._entry = None
            return self._reopen(self._decoding)

    def _open(self) -> Frame | None:
        """Open the source and decode the first selected frame."""
        self._converter = PictureConverter("cpu")
        self._container = self._open_container()
        self._frames = self._decoded()
        try:
            with translate_ffmpeg_errors(self.name):
                self._take_facts()
            first = self._next()
        except BaseException:
            self._close_container()
            raise
        if first is None and self._awaited is not None:
            self._close_container()
            raise self._refusal(self._awaited, "its picture does not come")
        if self._decoding is not ON_CPU and not self._may_wait and (first is None or self.fallback is not None):
            self.fallback = self.fallback or "the GPU decodes none of its frames"
            return self._reopen(ON_CPU)  # the CPU decodes with threads and converts faster
        if first is None:
            self._take_no_frame()
            return None
        self.size_hw = first.size_hw
        self._take_start(first.index)
        return first

    def _open_container(self) -> av.container.InputContainer:
        """Open the container for the decoding device; for a GPU a file is opened twice."""
        wanted = self._decoding
        if not self._may_wait and wanted.device != "cpu":
            container = self._opened()
            context = self._video_in(container).codec_context
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
        return self._opened()

    def _open_on_gpu(self) -> av.container.InputContainer:
        """Open the container for a GPU, or for the CPU if the GPU can't decode it."""
        try:
            with self._decoding.accelerated() as hwaccel:
                self._converter = PictureConverter(self._decoding.device)
                container = self._opened(hwaccel)
        except (SourceError, UnsupportedError, RuntimeError) as error:
            self.fallback = f"the GPU's decoder can't be opened: {cause_of(error)}"
        else:
            self.fallback = why_not_decoded(self._video_in(container).codec_context)
            if self.fallback is None:
                return container
            container.close()
        self._decoding, self._converter = ON_CPU, PictureConverter("cpu")
        return self._opened()

    def _opened(self, hwaccel: HWAccel | None = None) -> av.container.InputContainer:
        return open_container(self._url, hwaccel, number=self._selection.video_stream, resolve=self._resolve)

    def _video_in(self, container: av.container.InputContainer) -> av.VideoStream:
        return video_of(container, self._selection.video_stream)

    def _reopen(self, decoding: Decoding) -> Frame | None:
        """Reopen the source with another decoding device or start."""
        self._close_container()
        self._decoding = decoding
        self.frames_seen, self.bad_frames, self.picture_format = 0, [], None
        return self._open()

    def _take_no_frame(self) -> None:
        """Raise an error for a source without a selected frame."""
        self.close()
        is_beyond = self._start is None or self._start >= self.frames_seen
        if self._selection.starts_late and self.frames_seen and is_beyond:
            raise BeyondEndError(self.name, self._selection.shown_start, self.frames_seen)
        raise SourceError(f"source must have a frame that can be decoded, {self.name!r} has none.")

    def _take_start(self, index: int) -> None:
        """Adapt length and frame rate to the selection, once the first frame's index is known."""
        start = self._selection.start if self._selection.start_s is None else index
        self.length = replace(self._selection, start=start, start_s=None).count(self.length)
        self.fps = self.fps and self.fps / self._selection.every

    def _take_facts(self) -> None:
        """Read the container's metadata, and prepare decoding."""
        container = self._container
        self._stream = stream = self._video_in(container)
        self.is_live = is_camera(self._url) or (self._may_wait and container.duration is None)
        stream.thread_type = "SLICE" if self.is_live else "AUTO"  # frame threads are faster, but add latency
        self.decoder = self._decoding.device
        if self._decoding is not ON_CPU:
            stream.codec_context.thread_count = 1
        # For JPEGs over HTTP, FFmpeg reports 25 frames/s at any rate, so times are measured.
        self._began = time.monotonic() if self.is_live and container.format.name == "mpjpeg" else None
        rate = stream.average_rate
        self.fps = float(rate) if rate and self._began is None else None
        if self.is_live and self._selection.starts_late:
            raise InputError(f"start must be 0 for {self.name!r}, which is live, got {self._selection.shown_start}.")
        self.length = None if self.is_live else announced_length(container, stream)
        self._has_decoder = False  # a GPU decoder is created with the first pictures
        self._losses = Losses(container, stream, self._entry)
        self._awaited = self._entry  # None once its frame was decoded
        self._start: int | None = self._selection.start if self._selection.start_s is None else None
        self._start_s = float((stream.start_time or 0) * (stream.time_base or 0))
        if self._entry is not None:
            self.frames_seen = self._entry.index

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
                with translate_ffmpeg_errors(self.name):
                    return None if self._is_closed else next(self._frames, None)
            finally:
                if self._is_closed:
                    self._close_container()

    def close(self) -> None:
        """Close the file or device; may be called twice, and while another thread reads, whose frames then end."""
        self._is_closed = True
        if self._is_reading.acquire(blocking=False):  # else the reading thread closes it
            try:
                self._close_container()
            finally:
                self._is_reading.release()

    def _close_container(self) -> None:
        """Close the container and free its decoder by dropping all references to streams and pictures."""
        with self._decoding.alone():
            self._container.close()
            for keeper in ("_frames", "_stream", "_losses"):
                vars(self).pop(keeper, None)

    def _decoded(self) -> Iterator[Frame]:
        packets = self._packets(self._container, self._stream)
        for packet in packets if self._entry is None else self._packets_from(self._entry, packets):
            self._losses.see(packet)
            if packet.stream is not self._stream:
                continue
            for picture in self._decode(packet):
                yield from self._show(picture)
                if self.frames_seen >= self._stop:
                    return
        if self._losses.first_due is not None and not self.is_live:
            yield from self._decoded_end(self._losses.first_due)
        self._lose_before(None)

    def _packets_from(self, entry: Entry, packets: Iterator[av.Packet[Any]]) -> Iterator[av.Packet[Any]]:
        """Yield packets from the entry's on; seeking may stop at an earlier key frame."""
        is_sought = self._container.format.name in SEEKABLE
        if is_sought:
            try:
                self._container.seek(entry.pts, stream=self._stream)
            except (av.error.FFmpegError, OverflowError) as error:
                raise self._refusal(entry, "seeking to it fails") from error
        passed = 0
        for packet in packets:
            if packet.stream is not self._stream:
                continue
            if entry.is_of(packet) if is_sought else passed == entry.packets:
                yield from chain([packet], packets)
                return
            passed += 1
            if is_sought and passed == MOST_PASSED:
                break
        raise self._refusal(entry, "its packet is not found")

    def _refusal(self, entry: Entry, cause: str) -> CannotEnterError:
        return CannotEnterError(
            f"entry must be the key frame {entry.index} of {self.name!r}, at {entry.pts} ticks, with whole frames up "
            f"to the part's end: {cause}. Open the part with entry=None."
        )

    def _decoded_end(self, first_due: int) -> Iterator[Frame]:
        """Decode frames still due again without frame threads, which PyAV does not drain after damage."""
        with self._opened() as container:
            stream = self._video_in(container)
            stream.thread_type = "SLICE"
            container.seek(first_due, stream=stream)
            for packet in self._packets(container, stream):
                if packet.stream is not stream:
                    continue
                for picture in self._decode(packet):
                    due = self._losses.first_due
                    if due is not None and picture.pts is not None and picture.pts >= due:
                        yield from self._show(picture)

    def _packets(self, container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[av.Packet[Any]]:
        """Yield packets of all streams (live: of the video), then an empty one that drains the decoder."""
        try:
            yield from live_packets(container, stream) if self.is_live else container.demux()
        except av.error.FFmpegError as error:
            if self.is_live:
                raise FrameError(f"{self.name!r} broke off: {reason(error)}.", index=self.frames_seen) from error
            self._losses.fail(reason(error))
            drain: av.Packet[Any] = av.Packet()
            drain.stream = stream
            yield drain

    def _decode(self, packet: av.Packet[Any]) -> list[av.VideoFrame]:
        """The pictures the decoder returns after a packet; none if it finds damage."""
        try:
            with nullcontext() if self._has_decoder else self._decoding.alone():
                pictures = packet.decode()
        except av.error.FFmpegError as error:
            self._losses.fail(reason(error), packet)
            if packet.size and packet.pts is None:  # not tracked as due
                self._skip(f"{self.name}: {reason(error)}")
            return []
        self._has_decoder |= bool(pictures)
        return pictures

    def _show(self, picture: av.VideoFrame) -> Iterator[Frame]:
        """Yield a decoded picture as a frame, unless it is damaged or already reported as lost."""
        self._losses.place(picture)
        if self._losses.is_given_up(picture) or not self._is_entered(picture):
            return
        self._lose_before(picture)
        if picture.is_corrupt:
            return
        index, time_s = self.frames_seen, picture.time if self._began is None else time.monotonic() - self._began
        self.frames_seen += 1
        if not self._is_wanted(index, time_s):
            return
        limits.check("image_pixels", picture.width * picture.height, f"a frame of {self.name!r} has", SourceError)
        if self.picture_format is None:
            self.picture_format = read_picture_format(picture, self._stream.sample_aspect_ratio)
        try:
            pixels = self._converter.convert(picture)
        except RuntimeError as error:
            raise device_error(f"frame {index} of {self.name!r}", index, error) from error
        finally:
            self.fallback = self.fallback or self._converter.fallback
            if self._converter.is_on_cpu:
                self.decoder = "cpu"
        yield Frame(index, time_s, pixels, self.name, f"{self.name}#{index}")

    def _is_wanted(self, index: int, time_s: float | None) -> bool:
        """Whether a frame is selected; the first selected one fixes the start."""
        if self._start is None:
            if time_s is None:
                raise InputError(f"start must be a number of frames for {self.name!r}, whose frames have no times.")
            if not self._selection.is_late_enough(time_s - self._start_s):
                return False
            self._start = index
        if self.picture_format is None and index >= self._start and self.bad_frames:  # first selected frame
            self.bad_frames = [bad for bad in self.bad_frames if bad[0] >= self._start]
        return index >= self._start and (index - self._start) % self._selection.every == 0

    def _is_entered(self, picture: av.VideoFrame) -> bool:
        """Whether decoding has reached the entry's picture; pictures shown before it are incomplete."""
        entry = self._awaited
        if entry is None:
            return True
        if picture.pts is not None and picture.pts < entry.pts:
            return False
        if picture.pts != entry.pts or picture.pict_type != PictureType.I or picture.is_corrupt:
            # With gradual intra refresh, encoders mark pictures as key frames that are not I pictures.
            raise self._refusal(entry, "its picture is another, or refers to others")
        self._awaited = None
        return True

    def _lose_before(self, picture: av.VideoFrame | None) -> None:
        """Record frames lost before a picture, or before the end if None; and the picture itself if damaged."""
        for loss in self._losses.before(picture):
            self._skip(f"{self.name}: {loss.reason}", loss.frames)
