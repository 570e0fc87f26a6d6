"""Account for every packet of a video: its frame is either shown or reported as lost.

A packet without a picture is a lost frame if its codec has a frame in every packet, or where anything is damaged; else
it is a second field, or a picture that is never shown. Frames whose packets are missing can only be estimated, from a
gap in time next to damage: a packet that FFmpeg reports, or bytes that belong to no packet. A gap alone is no loss, as
screen recorders and phones write a frame only when something changes; nor are bytes alone, as containers pad.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from statistics import median
from typing import Any, NamedTuple

import av

from maskjet.sources.video_index import LEAST_BYTES, MATROSKA, MP4, PROGRESSIVE, Entry

_DAMAGED = "its data are damaged"
_FLASH = "flv"
_SEQUENTIAL = (MATROSKA, _FLASH)
"""Container formats that store packets of all streams contiguously."""
_MOST_BETWEEN = 64  # most bytes between two packets, taken by headers
_STATE_THEIR_END = (*_SEQUENTIAL, "avi", MP4)  # formats with a stored duration; else FFmpeg guesses
_CLOCK = re.compile(r"(\d{1,6}):(\d{1,2}):(\d{1,2}(?:\.\d{1,9})?)$")
_LOCAL = 15  # last frame intervals, whose median is the local one
_LONGEST_STEP = 1.5  # in local intervals; longer steps are gaps


class Loss(NamedTuple):
    """A lost frame, or missing packets."""

    reason: str
    """Reason for the loss, as text."""
    frames: int
    """1 for a lost frame whose packet exists; 0 for missing packets, whose number is only estimated."""


class Losses:
    """Tracks a video's packets in file order and its pictures in display order, to find losses.

    Decoding begins at an entry, or at the beginning of the file.
    """

    def __init__(
        self, container: av.container.InputContainer, stream: av.VideoStream, entry: Entry | None = None
    ) -> None:
        self._container, self._stream, self._number = container, stream, stream.index
        self._format, self._tick = container.format.name, float(stream.time_base or 0)
        self._lists_packets = self._format == MP4 and bool(stream.frames)  # none can be missing within
        is_progressive = stream.codec_context.field_order in PROGRESSIVE
        self._least_bytes = LEAST_BYTES.get(stream.codec.canonical_name) if is_progressive else None
        self._first_key = None if entry is None else entry.pts  # presentation time of the first key frame, in ticks
        self._packets = 0 if entry is None else entry.packets
        # Offsets that keep times increasing where time jumps back: the first for pictures, the last for packets.
        self._shifts = [0]
        self._decoded: int | None = None  # decoding time of the last packet, unshifted
        # Heap of (presentation time, is surely a frame) of packets whose picture is still due.
        self._due: list[tuple[int, bool]] = []
        self._untimed: deque[int] = deque()  # decoding times of due packets without presentation time
        self._given_up: set[int] = set()  # presentation times of frames reported as lost
        self._damage: str | None = None  # last damage reported by the decoder
        self._suspects: list[tuple[int, int]] = []  # (start, end) of spans in which packets may be missing
        self._before: int | None = None  # decoding time of the video's last packet
        self._delay = 0  # longest time from decoding to presentation so far
        self._was_damaged = False  # whether the last packet, or one of another stream since, was damaged
        self._position: int | None = None  # file position behind the last packet
        self._last: int | None = None  # presentation time of the last picture, shown or lost
        self._intervals: deque[int] = deque(maxlen=_LOCAL)
        self._end_s = self._end_of_all_s = 0.0

    @property
    def first_due(self) -> int | None:
        """The first presentation time of a packet without a picture; None if each has one, or time jumped back."""
        return self._due[0][0] if self._due and self._shifts == [0] else None

    def see(self, packet: av.Packet[Any]) -> None:
        """Record a packet of any stream, before it is decoded."""
        is_damaged = packet.is_corrupt or self._has_hole(packet)
        end_s = _end_s(packet)
        self._end_of_all_s = max(self._end_of_all_s, end_s)
        if packet.stream_index != self._number:
            self._was_damaged |= is_damaged  # the lost bytes may hold a video packet
            return
        self._packets += packet.pos is not None
        time = packet.pts if packet.dts is None else packet.dts
        if time is None and self._untimed:
            time = self._decoded
        if time is None or not packet.size:
            return
        pts = time if packet.pts is None else packet.pts
        if packet.dts is not None:
            if self._decoded is not None and packet.dts < self._decoded - self._delay:
                latest = max(self._decoded + self._shifts[-1], self._last or pts, *(due for due, _ in self._due))
                self._shifts.append(latest + (packet.duration or 1) - pts)
            self._decoded = packet.dts
        pts, time = pts + self._shifts[-1], time + self._shifts[-1]
        if packet.is_keyframe and self._first_key is None:
            self._first_key = pts
        self._delay = max(self._delay, pts - time)
        if is_damaged or self._was_damaged or self._first_key is None:
            self._suspect(min(time, pts), time)
        self._was_damaged, self._before = packet.is_corrupt, time
        # Leading pictures, shown before the first key frame, refer to missing pictures and are not due.
        if not packet.is_discard and (self._first_key is None or pts >= self._first_key):
            if packet.pts is None:
                self._untimed.append(time - self._shifts[-1])
            else:
                heappush(self._due, (pts, self._least_bytes is not None and packet.size >= self._least_bytes))
            self._end_s = max(self._end_s, end_s)

    def place(self, picture: av.VideoFrame) -> None:
        """Assign decoding times, in order, to pictures of files without presentation times."""
        if picture.pts is None and self._untimed:
            time = self._untimed.popleft()
            picture.pts = time if self._last is None else max(time, self._last - self._shifts[0] + 1)

    def _shifted(self, picture: av.VideoFrame) -> int | None:
        """A picture's time plus the first offset with which it is due, as decoders delay pictures across a jump."""
        if picture.pts is None:
            return None
        if len(self._shifts) > 1:
            known = {due for due, _ in self._due} | self._given_up
            fitting = [number for number, shift in enumerate(self._shifts) if picture.pts + shift in known]
            del self._shifts[: min(fitting, default=0)]
        return picture.pts + self._shifts[0]

    def _has_hole(self, packet: av.Packet[Any]) -> bool:
        """Whether there is a gap or an overlap in the file before a packet."""
        if packet.pos is None or self._format not in _SEQUENTIAL:
            return False
        end, self._position = self._position, packet.pos + packet.size
        return end is not None and not 0 <= packet.pos - end <= _MOST_BETWEEN

    def _suspect(self, since: int, until: int) -> None:
        before = since if self._before is None else self._before
        self._add_suspect(min(before, since), max(before, until) + self._delay)

    def _add_suspect(self, since: int, until: int) -> None:
        """Add a suspect span, merged with the last one if they touch, which bounds their number."""
        if self._suspects and since <= self._suspects[-1][1] and until >= self._suspects[-1][0]:
            last = self._suspects.pop()
            since, until = min(since, last[0]), max(until, last[1])
        self._suspects.append((since, until))

    def fail(self, reason: str, packet: av.Packet[Any] | None = None) -> None:
        """Record a decoding error in the last packet, or a read error."""
        self._damage, self._was_damaged = reason, True
        if packet is not None and packet.size and packet.pts is None and self._untimed:
            self._untimed.pop()
        if self._before is not None:
            self._suspect(self._before, self._before)

    def is_given_up(self, picture: av.VideoFrame) -> bool:
        """Whether a picture was already reported as lost."""
        return self._shifted(picture) in self._given_up

    def before(self, picture: av.VideoFrame | None) -> Iterator[Loss]:
        """Yield the losses before the next picture, or the end if None; and the picture itself if damaged."""
        pts = None if picture is None else self._shifted(picture)
        while self._due and (picture is None or (pts is not None and self._due[0][0] <= pts)):
            due, is_frame = heappop(self._due)
            if due != pts and (is_frame or self._damage is not None or self._is_suspect(due, due)):
                self._add_suspect(due, due)
                yield from self._gap(due)
                self._given_up.add(due)
                yield Loss(self._damage or _DAMAGED, 1)
        if picture is None:
            if self._damage is not None or self._least_bytes is not None:
                yield from [Loss(self._damage or _DAMAGED, 1)] * len(self._untimed)
            yield from self._gap_at_end()
            return
        if picture.is_corrupt and pts is not None:
            self._add_suspect(pts, pts)
        if pts is not None:
            yield from self._gap(pts)
        if picture.is_corrupt:
            self._damage = _DAMAGED
            yield Loss(_DAMAGED, 1)

    def _gap(self, pts: int) -> Iterator[Loss]:
        """Yield a loss if packets seem to be missing before a frame."""
        before, self._last = self._last, pts
        if before is None or pts <= before:
            return
        if self._suspects:
            local = median(self._intervals) if self._intervals else 0
            is_long = local > 0 and pts - before > _LONGEST_STEP * local
            if is_long and not self._lists_packets and self._is_suspect(before, pts):
                yield self._missing((pts - before) / local - 1, f"before {(pts - self._shifts[0]) * self._tick:.2f} s")
            self._suspects = [(since, until) for since, until in self._suspects if until >= pts]
        self._intervals.append(pts - before)

    def _is_suspect(self, since: int, until: int) -> bool:
        return any(first <= until and last >= since for first, last in self._suspects)

    def _gap_at_end(self) -> Iterator[Loss]:
        """Yield a loss if packets are missing at the end, judged by header or index."""
        stated = self._stated_packets()
        missing_s = self._missing_s()
        local_s = median(self._intervals) * self._tick if self._intervals else 0.0
        if stated:
            missing = float(stated - self._packets)
        else:
            missing = missing_s / local_s if local_s and missing_s > _LONGEST_STEP * local_s else 0.0
        if missing >= 1:
            of_s = f" of {self._end_s + missing_s:.2f}" if missing_s > 0 else ""
            yield self._missing(missing, f"at the end: the video breaks off at {self._end_s:.2f}{of_s} s")

    @staticmethod
    def _missing(count: float, where: str) -> Loss:
        frames = max(round(count), 1)
        return Loss(f"about {frames} frame{'s'[: frames > 1]} missing {where}", 0)

    def _stated_packets(self) -> int:
        """Number of packets according to header or index; 0 if unknown."""
        listed = self._stream.index_entries
        if self._lists_packets:
            return len(listed)  # includes packets cut by an edit list
        if self._format == "avi" and len(listed) and listed[-1].timestamp + 1 == self._stream.frames:
            return len(listed)  # the index has no entries for repeated frames
        return self._stream.frames

    def _missing_s(self) -> float:
        """Seconds between the end of the last frame and the end in the header; 0 if unknown."""
        stream = self._stream
        if self._format not in _STATE_THEIR_END:
            return 0.0
        if stream.duration is not None:
            is_from_start = stream.frames or self._format != MP4  # in fragmented MP4 it counts from zero
            return (stream.duration + (stream.start_time or 0 if is_from_start else 0)) * self._tick - self._end_s
        if tagged_s := _tagged_end_s(stream):
            return tagged_s - self._end_s
        return (self._container.duration or 0) / av.time_base - self._end_of_all_s


def announced_length(container: av.container.InputContainer, stream: av.VideoStream) -> int | None:
    """Number of frames in a video's header, or else estimated from its duration and rate."""
    if stream.frames or not stream.average_rate:
        return stream.frames or None
    tick, start_s, ticks = float(stream.time_base or 0), 0.0, stream.duration or 0
    length_s = ticks * tick
    if not ticks:
        length_s = _tagged_end_s(stream) or (container.duration or 0) / av.time_base
        start_s = (stream.start_time or 0) * tick
        if container.format.name != MATROSKA:  # in Matroska the duration is the end time
            start_s -= (container.start_time or 0) / av.time_base
    return round((length_s - start_s if length_s > start_s else length_s) * stream.average_rate) or None


def _tagged_end_s(stream: av.VideoStream) -> float | None:
    """End of a Matroska video in seconds, from its tags; None if missing."""
    match = _CLOCK.match(stream.metadata.get("DURATION", ""))
    return int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3]) if match else None


def _end_s(packet: av.Packet[Any]) -> float:
    """End of a packet's presentation, in seconds; 0 if it has no clock."""
    tick, end = packet.time_base, ((packet.dts or 0) if packet.pts is None else packet.pts) + (packet.duration or 0)
    return end * tick.numerator / tick.denominator if tick else 0.0  # Fraction arithmetic takes four times as long
