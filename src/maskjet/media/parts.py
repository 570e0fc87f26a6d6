"""A part of a video: its frames have the indices that they have in the whole video."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import av.error

from maskjet.errors import SourceError
from maskjet.media.decoding import ON_CPU, Decoding
from maskjet.media.selection import Selection
from maskjet.media.skipping import CannotSkipError
from maskjet.media.source import Frame
from maskjet.media.timeline import Timeline
from maskjet.media.videos import VideoSource

MOST_PASSED = 1000
"""Packets of the video between where seeking ends and the key frame sought."""


@dataclass(frozen=True)
class Entry:
    """A key frame from which on all frames shown later can be decoded."""

    index: int
    """Index of the frame in the whole video."""
    pts: int
    """Its presentation time, in ticks of its stream."""
    packets: int
    """Packets of the video before its own, in the order of the file."""

    def is_of(self, packet: av.Packet[Any]) -> bool:
        """Whether a packet of the video is that of the key frame."""
        return packet.pts == self.pts and packet.is_keyframe and not packet.is_discard and packet.size > 0


@dataclass(frozen=True)
class VideoPart:
    """Consecutive frames of a video."""

    first: int
    """Index of its first frame in the whole video."""
    count: int | None
    """Number of frames, shown or bad; None for all up to the end."""
    entry: Entry | None
    """Where decoding begins, its index is `first`; None if frames before the part are counted when it is read."""


def first_wanted(part: VideoPart, every: int) -> int:
    """The first index from the part's beginning on that is a multiple of `every`."""
    return -(-part.first // every) * every


class CannotEnterError(SourceError):
    """A part can't be read from its entry; without it, it can."""

    def __init__(self, name: str, entry: Entry, cause: str) -> None:
        super().__init__(
            f"entry must be the key frame {entry.index} of {name!r}, at {entry.pts} ticks, with whole frames up to the "
            f"part's end: {cause}. Open the part with entry=None."
        )


class PartSource(VideoSource):
    """The frames of a part whose index is a multiple of `every`.

    With an entry, decoding begins there, and the first doubt ends it: damage, a lost frame, a packet without a picture,
    times out of order. So `bad_frames` stays empty. Without an entry, frames before the part are counted as
    `VideoSource` counts them when it starts late, and `bad_frames` lists all frames of the part that are bad.
    A part may have no frame to give.

    Args:
        name: Path of the video.
        part: The part.
        every: Distance between two frames given, in frames.
        decoding: Where it is decoded.

    Raises:
        CannotEnterError: The entry does not hold; also while frames are read.
        SourceError: The video can't be opened.
        DeviceError: The GPU failed; also while frames are read.
    """

    def __init__(self, name: str, part: VideoPart, *, every: int = 1, decoding: Decoding = ON_CPU) -> None:
        self._part, self._entry, self._every = part, part.entry, every
        self._stop = math.inf if part.count is None else part.first + part.count
        self._last_pts: int | None = None
        super().__init__(name, Selection(start=part.first), decoding)

    def _take_facts(self) -> None:
        self._may_skip &= self._entry is None
        super()._take_facts()
        end = self.length if self._part.count is None else self._part.first + self._part.count
        self.length = None if end is None else len(range(first_wanted(self._part, self._every), end, self._every))
        self.fps = self.fps and self.fps / self._every
        entry = self._entry
        if entry is None:
            return
        try:
            self._container.seek(entry.pts, stream=self._stream)
        except (av.error.FFmpegError, OverflowError) as error:
            raise CannotEnterError(self.name, entry, "seeking to it fails") from error
        self.frames_seen, self._packets_seen = entry.index, entry.packets
        self._cut, self._skipped_to = entry.pts, entry.pts - 1
        self._last_pts = None

    def _take_no_frame(self) -> None:
        """Accept a part without frames to give."""

    def _take_start(self, index: int) -> None:
        """The facts are adapted already."""

    def _new_timeline(self) -> Timeline:
        """The timeline; from an entry, one that knows nothing of the file's beginning."""
        path = Path(self._url) if self._entry is None else None
        return Timeline(self._container, self._stream, path)

    def _next(self) -> Frame | None:
        try:
            frame = super()._next()
        except CannotSkipError as error:
            if self._entry is None:
                raise
            raise CannotEnterError(self.name, self._entry, "its picture is another, or refers to others") from error
        if not self.index_is_exact:
            self._doubt("frames may be missing")
        if frame is None and not self._is_closed:
            if self.frames_seen < self._stop < math.inf:
                self._doubt(f"the video ends at frame {self.frames_seen}")
            self.bad_frames = [bad for bad in self.bad_frames if self._part.first <= bad[0] < self._stop]
            if self._part.count is not None:
                self.frames_seen = min(self.frames_seen, self._part.first + self._part.count)
        return frame

    def _packets(self, container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[av.Packet[Any]]:
        packets = super()._packets(container, stream)
        return packets if self._entry is None else self._packets_from(self._entry, packets)

    def _packets_from(self, entry: Entry, packets: Iterator[av.Packet[Any]]) -> Iterator[av.Packet[Any]]:
        """The packets from the entry's on; in some files, FFmpeg's seeking ends at an earlier key frame."""
        passed = 0
        for packet in packets:
            if packet.stream_index == self._stream.index:
                if entry.is_of(packet):
                    yield packet
                    yield from packets
                    return
                passed += 1
                if passed == MOST_PASSED:
                    break
        self._doubt("its packet is not found")

    def _is_wanted(self, index: int, time_s: float | None) -> bool:
        return super()._is_wanted(index, time_s) and index < self._stop and index % self._every == 0

    def _miss_before(self, pts: int | None) -> None:
        if self._due and (pts is None or self._due[0] < pts):
            self._doubt("a packet gives no picture")
        super()._miss_before(pts)

    def _place(self, pts: int | None) -> None:
        if pts is None or (self._last_pts is not None and pts <= self._last_pts):
            self._doubt("times are missing or out of order")
        self._last_pts = pts
        super()._place(pts)

    def _decoded_end(self) -> Iterator[Frame]:
        self._doubt("packets give no picture")
        yield from super()._decoded_end()

    def _skip(self, reason: str, count: int = 1) -> None:
        self._doubt(reason)
        super()._skip(reason, count)

    def _doubt(self, cause: str) -> None:
        """Raise if the part is read from an entry, as frames may be other than those of the whole video."""
        if self._entry is not None:
            raise CannotEnterError(self.name, self._entry, cause)
