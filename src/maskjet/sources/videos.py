"""Videos, cameras and network streams: frames decoded by FFmpeg, numbered and selected."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import av
import av.error

from maskjet import limits
from maskjet.errors import FrameError, InputError, SourceError, device_error
from maskjet.sources.colours import read_picture_format
from maskjet.sources.containers import files_of, interruptible, is_stream, reason, shown_name, translate_ffmpeg_errors
from maskjet.sources.conversion import HeldPicture
from maskjet.sources.decoding import ON_CPU, Decoding
from maskjet.sources.losses import Loss, announced_length
from maskjet.sources.opened_video import OpenedVideo, open_video
from maskjet.sources.selection import EVERYTHING, BeyondEndError, Selection
from maskjet.sources.source import Frame, Source
from maskjet.sources.video_decoder import CannotEnterError, VideoDecoder
from maskjet.sources.video_index import Entry, find_entry


def open_video_source(url: str, selection: Selection = EVERYTHING, decoding: Decoding = ON_CPU) -> VideoSource:
    """Open a video file, camera or network stream, and decode its first selected frame.

    Files that refer to other files, such as playlists, are refused. URLs are read over network protocols only.

    With a selection, frames that are left out are counted, but not converted to RGB, and where the container and codec
    allow it, those before the start are not even decoded: the frames given are the same, bit for bit. What is damaged
    or missing before the first frame given is not reported.

    Args:
        url: Path, device file or URL.
        selection: Frames to give; a live source has no start.
        decoding: Where it is decoded. A GPU does not notice damage inside of a frame's data, and shows other traces.

    Raises:
        SourceError: The source can't be opened, has no video, or has no frame that can be decoded.
        BeyondEndError: The source ends before the selection's start.
        InputError: The selection has a start that the source can't have.
        DeviceError: The GPU failed; also while frames are read.
    """
    if is_stream(url):
        return interruptible(url, lambda: _open_at(url, selection, decoding))
    entry = find_entry(url, selection) if selection.starts_late else None
    try:
        return _open_at(url, selection, decoding, entry)
    except CannotEnterError:
        return _open_at(url, selection, decoding)


def open_video_part(url: str, selection: Selection, decoding: Decoding, entry: Entry | None) -> VideoSource:
    """Open a part of a video file, which may have no selected frame.

    With an entry, the first doubt that its frames are those of the whole video is a CannotEnterError, also while
    frames are read: damage, a lost frame, a packet without a picture, times out of order, an early end.
    """
    return _open_at(url, selection, decoding, entry, is_part=True)


def _open_at(
    url: str, selection: Selection, decoding: Decoding, entry: Entry | None = None, *, is_part: bool = False
) -> VideoSource:
    """Open a video at an entry and decode its first frame; on the CPU if that shows that the GPU can't."""
    with ExitStack() as undo:
        video = open_video(url, decoding)
        undo.callback(video.close)
        with translate_ffmpeg_errors(shown_name(url)):
            source = VideoSource(video, selection, entry, is_part=is_part)
        undo.callback(source.close)
        first = source.read_first()
        undo.pop_all()
    if video.decoding is not ON_CPU and not is_stream(url) and (first is None or source.fallback is not None):
        source.close()
        on_cpu = _open_at(url, selection, ON_CPU, entry, is_part=is_part)  # decodes with threads, converts faster
        on_cpu.fallback = source.fallback or "the GPU decodes none of its frames"
        return on_cpu
    if first is None and not is_part:
        source.close()
        if selection.starts_late and source.frames_seen and not source.has_begun:
            raise BeyondEndError(source.name, selection.shown_start, source.frames_seen)
        raise SourceError(f"source must have a frame that can be decoded, {source.name!r} has none.")
    return source


class VideoSource(Source):
    """The selected frames of a video file, camera or network stream, upright.

    Every packet of the video that holds a frame is shown, or is an entry in `bad_frames`; an index counts the packets
    that are there. Frames predicted from a damaged one are shown as FFmpeg decodes them, with traces of the damage up
    to the next key frame.

    Packets that are missing are not counted. If damage is found next to a gap in time of more than 1.5 intervals, or
    the file ends before the end it states, an entry in `bad_frames` says so.

    Args:
        video: The opened video.
        selection: Frames to give.
        entry: Key frame at which decoding begins; None for the beginning.
        is_part: Whether frames must be those of the whole video, see `open_video_part`.

    Raises:
        InputError: The source is live and the selection has a start.
    """

    kind = "video"

    def __init__(
        self, video: OpenedVideo, selection: Selection, entry: Entry | None = None, *, is_part: bool = False
    ) -> None:
        super().__init__(shown_name(video.url))
        self.files, self.is_live = files_of(video.url), video.is_live
        self.decoder, self.fallback = video.decoding.device, video.fallback
        if self.is_live and selection.starts_late:
            raise InputError(f"start must be 0 for {self.name!r}, which is live, got {selection.shown_start}.")
        self._video, self._selection = video, selection
        self._is_reading = threading.Lock()
        stream = video.stream
        stream.thread_type = "SLICE" if self.is_live else "AUTO"  # frame threads are faster, but add latency
        # For JPEGs over HTTP, FFmpeg reports 25 frames/s at any rate, so times are measured.
        self._began = time.monotonic() if self.is_live and video.container.format.name == "mpjpeg" else None
        rate = stream.average_rate
        self.fps = float(rate) / selection.every if rate and self._began is None else None
        self._announced = None if self.is_live else announced_length(video.container, stream)
        self.length = selection.count(self._announced)
        self._start_s = float((stream.start_time or 0) * (stream.time_base or 0))
        self.frames_seen = 0 if entry is None else entry.index
        stop = math.inf if selection.stop is None else selection.stop
        decoder = VideoDecoder(video, entry, exact_until=stop if is_part and entry is not None else None)
        self._decoded, self._arrivals = iter(decoder), decoder.arrivals
        self._first: Frame | None = None

    @property
    def has_begun(self) -> bool:
        """Whether there is a frame at the selection's start."""
        return self._selection.start_s is None and self._selection.start < self.frames_seen

    def read_first(self) -> Frame | None:
        """Decode up to the first selected frame, which `iter` gives again; None if there is none."""
        self._first = self._next()
        self.size_hw = None if self._first is None else self._first.size_hw
        return self._first

    def _read(self) -> Iterator[Frame]:
        frame, given, url = self._first, 0, self._video.url
        may_wait = is_stream(url)
        while frame is not None:
            if not self.keeps_yuv and isinstance(frame.pixels, HeldPicture):
                with translate_ffmpeg_errors(self.name):
                    rgb = frame.pixels.to_rgb()
                frame = Frame(frame.index, frame.time_s, rgb, frame.source, frame.name, arrived_s=frame.arrived_s)
            yield frame
            given += 1
            if given == self._selection.limit:
                return
            frame = interruptible(url, self._next) if may_wait else self._next()

    def _next(self) -> Frame | None:
        """Decode up to the next selected frame; None at the end, and once the source is closed."""
        try:
            with self._is_reading, translate_ffmpeg_errors(self.name):
                return None if self._is_closed else self._decode_next()
        finally:
            if self._is_closed:  # meanwhile, by another thread
                self.close()

    def _decode_next(self) -> Frame | None:
        stop = self._selection.stop
        while stop is None or self.frames_seen < stop:
            try:
                decoded = next(self._decoded, None)
            except av.error.FFmpegError as error:
                if self.is_live:
                    raise FrameError(f"{self.name!r} broke off: {reason(error)}.", index=self.frames_seen) from error
                raise
            if decoded is None:
                break
            if isinstance(decoded, Loss):
                self._lose(decoded)
            elif (frame := self._frame_of(decoded)) is not None:
                return frame
        return None

    def _lose(self, loss: Loss) -> None:
        """Report a loss, unless it is before the selection's start, and count its frames."""
        if self.frames_seen >= self._selection.start:
            self.bad_frames.append((self.frames_seen, f"{self.name}: {loss.reason}"))
        self.frames_seen += loss.frames

    def _frame_of(self, picture: av.VideoFrame) -> Frame | None:
        """Number a picture, and make a frame of it if it is selected."""
        index, time_s = self.frames_seen, picture.time if self._began is None else time.monotonic() - self._began
        arrived_s = self._arrivals.pop(picture.pts, None)
        self.frames_seen += 1
        if not self._is_selected(index, time_s):
            return None
        limits.check("image_pixels", picture.width * picture.height, f"a frame of {self.name!r} has", SourceError)
        if self.picture_format is None:
            self.picture_format = read_picture_format(picture, self._video.stream.sample_aspect_ratio)
        converter = self._video.converter
        try:
            pixels = converter.convert(picture)
        except RuntimeError as error:
            raise device_error(f"frame {index} of {self.name!r}", index, error) from error
        finally:
            self.fallback = self.fallback or converter.fallback
            if converter.is_on_cpu:
                self.decoder = "cpu"
        return Frame(index, time_s, pixels, self.name, f"{self.name}#{index}", arrived_s=arrived_s)

    def _is_selected(self, index: int, time_s: float | None) -> bool:
        """Whether a frame is selected; the first one that is late enough fixes a start in seconds."""
        if self._selection.start_s is not None:
            if time_s is None:
                raise InputError(f"start must be a number of frames for {self.name!r}, whose frames have no times.")
            if not self._selection.is_late_enough(time_s - self._start_s):
                return False
            self._selection = replace(self._selection, start=index, start_s=None)
            self.length = self._selection.count(self._announced)
            self.bad_frames = [bad for bad in self.bad_frames if bad[0] >= index]
        return self._selection.has(index)

    def close(self) -> None:
        """Close the file or device; may be called twice, and while another thread reads, whose frames then end."""
        self._is_closed = True
        if self._is_reading.acquire(blocking=False):  # else the reading thread closes it
            try:
                with self._video.decoding.alone():  # the last reference to a picture frees its decoder
                    self._decoded = iter(())
                    self._video.close()
            finally:
                self._is_reading.release()
