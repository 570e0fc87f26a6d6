"""Account for every packet of a video: its frame is either shown or reported as lost.

A packet without a picture is a lost frame if its codec has a frame in every packet, or where anything is damaged; else
it is a second field, or a picture that is never shown. Packets that are missing show as a gap in time next to damage: a
packet that FFmpeg reports, or bytes that belong to no packet. A gap alone is no loss, as screen recorders and phones
write a frame only when something changes; nor are bytes alone, as containers pad.
"""

from __future__ import annotations

import math
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
_STEPS = 15  # last steps of decoding time, whose median is the usual one
_NEXT = 3  # packets next to a damaged one; FFmpeg marks one that is before the gap, too
_LONGEST_STEP = 1.5  # in usual steps; longer ones are gaps


class Loss(NamedTuple):
    """A lost frame, or missing packets."""

    reason: str
    """Reason for the loss, as text."""
    frames: int
    """1 for a lost frame whose packet exists; 0 for missing packets, which are not counted."""


class Losses:
    """Tracks a video's packets in file order and its pictures in display order, to find losses.

    Decoding begins at an entry, or at the beginning of the file. With `has_all_pictures`, any packet without a picture
    is a loss.
    """

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: av.VideoStream,
        entry: Entry | None = None,
        *,
        has_all_pictures: bool = False,
    ) -> None:
        self._container, self._stream, self._number = container, stream, stream.index
        self._format, self._tick = container.format.name, float(stream.time_base or 0)
        self._lists_packets = self._format == MP4 and bool(stream.frames)  # none can be missing within
        is_progressive = stream.codec_context.field_order in PROGRESSIVE
        least_bytes = LEAST_BYTES.get(stream.codec.canonical_name) if is_progressive else None
        self._least_bytes = 0 if has_all_pictures else least_bytes
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
        self._before: int | None = None  # decoding time of the video's last packet
        self._steps: deque[int] = deque(maxlen=_STEPS)
        self._gap: int | None = None  # presentation time of the first packet behind a gap without damage so far
        self._damaged_gaps: deque[int] = deque()  # such times of gaps next to damage, not reported yet
        self._delay = 0  # longest time from decoding to presentation so far
        self._since_damage = _NEXT  # video packets since a damaged one of any stream
        self._position: int | None = None  # file position behind the last packet
        self._last: int | None = None  # presentation time of the last picture, shown or lost
        self._end_s = 0.0  # end of the packets of all streams

    @property
    def first_due(self) -> int | None:
        """The first presentation time of a packet without a picture; None if each has one, or time jumped back."""
        return self._due[0][0] if self._due and self._shifts == [0] else None

    def see(self, packet: av.Packet[Any]) -> None:
        """Record a packet of any stream, before it is decoded."""
        if packet.is_corrupt or self._has_hole(packet):
            self._since_damage = 0  # in another stream, the lost bytes may hold a video packet
        self._end_s = max(self._end_s, _end_s(packet))
        if packet.stream_index != self._number:
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
                self._before = None
            self._decoded = packet.dts
        pts, time = pts + self._shifts[-1], time + self._shifts[-1]
        if packet.is_keyframe and self._first_key is None:
            self._first_key = pts
        self._delay = max(self._delay, pts - time)
        is_suspect = self._since_damage < _NEXT or self._first_key is None
        self._since_damage += 1
        self._find_gap(time, pts, is_suspect=is_suspect)
        # Leading pictures, shown before the first key frame, refer to missing pictures and are not due.
        if not packet.is_discard and (self._first_key is None or pts >= self._first_key):
            if packet.pts is None:
                self._untimed.append(time - self._shifts[-1])
            else:
                is_frame = self._least_bytes is not None and packet.size >= self._least_bytes
                heappush(self._due, (pts, is_frame or is_suspect))

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

    def _find_gap(self, time: int, pts: int, *, is_suspect: bool) -> None:
        """Look for a gap in time before a packet, and remember the step to it."""
        if self._before is not None and (step := time - self._before) > 0:
            if self._steps and step > _LONGEST_STEP * median(self._steps) and not self._lists_packets:
                self._gap = pts
                if is_suspect:
                    self._damage_gap()
            self._steps.append(step)
        self._before = time

    def _damage_gap(self) -> None:
        """Report the last gap with the next picture, as there is damage next to it."""
        if self._gap is not None:
            self._damaged_gaps.append(self._gap)
            self._gap = None

    def fail(self, reason: str, packet: av.Packet[Any] | None = None) -> None:
        """Record a decoding error in the last packet, or a read error."""
        self._damage, self._since_damage = reason, 0
        if packet is not None and packet.size and packet.pts is None and self._untimed:
            self._untimed.pop()
        self._damage_gap()

    def is_given_up(self, picture: av.VideoFrame) -> bool:
        """Whether a picture was already reported as lost."""
        return self._shifted(picture) in self._given_up

    def before(self, picture: av.VideoFrame | None) -> Iterator[Loss]:
        """Yield the losses before the next picture, or the end if None; and the picture itself if damaged."""
        pts = None if picture is None else self._shifted(picture)
        while self._due and (picture is None or (pts is not None and self._due[0][0] <= pts)):
            due, is_frame = heappop(self._due)
            if due != pts and (is_frame or self._damage is not None):
                self._last = due
                self._given_up.add(due)
                yield Loss(self._damage or _DAMAGED, 1)
        if picture is None:
            if self._damage is not None or self._least_bytes is not None:
                yield from [Loss(self._damage or _DAMAGED, 1)] * len(self._untimed)
            yield from self._missing_at_end()
            return
        if pts is not None:
            self._last = pts
            if self._gap is not None and self._gap <= pts:
                if picture.is_corrupt:
                    self._damage_gap()
                self._gap = None
            while self._damaged_gaps and self._damaged_gaps[0] <= pts:
                at_s = (self._damaged_gaps.popleft() - self._shifts[0]) * self._tick
                yield Loss(f"frames are missing before {at_s:.2f} s", 0)
        if picture.is_corrupt:
            self._damage = _DAMAGED
            yield Loss(_DAMAGED, 1)

    def _missing_at_end(self) -> Iterator[Loss]:
        """Yield a loss if the file ends before its header or index says."""
        stated, end_s = self._stated_packets(), 0.0
        if self._format in _STATE_THEIR_END:
            end_s = (self._container.duration or 0) / av.time_base
        step_s = median(self._steps) * self._tick if self._steps else math.inf
        if stated > self._packets or (not stated and end_s - self._end_s > _LONGEST_STEP * step_s):
            of_s = f" of {end_s:.2f}" if end_s > self._end_s else ""
            yield Loss(f"frames are missing at the end: the video breaks off at {self._end_s:.2f}{of_s} s", 0)

    def _stated_packets(self) -> int:
        """Number of packets according to header or index; 0 if unknown."""
        listed = self._stream.index_entries
        if self._lists_packets:
            return len(listed)  # includes packets cut by an edit list
        if self._format == "avi" and len(listed) and listed[-1].timestamp + 1 == self._stream.frames:
            return len(listed)  # the index has no entries for repeated frames
        return self._stream.frames


def announced_length(container: av.container.InputContainer, stream: av.VideoStream) -> int | None:
    """Number of frames in a video's header, or else estimated from its duration and rate."""
    if stream.frames or not stream.average_rate:
        return stream.frames or None
    tick = float(stream.time_base or 0)
    length_s = stream.duration * tick if stream.duration else (container.duration or 0) / av.time_base
    if container.format.name == MATROSKA:  # whose duration is its end
        length_s -= (stream.start_time or 0) * tick
    return round(length_s * stream.average_rate) or None


def _end_s(packet: av.Packet[Any]) -> float:
    """End of a packet's presentation, in seconds; 0 if it has no clock."""
    tick, end = packet.time_base, ((packet.dts or 0) if packet.pts is None else packet.pts) + (packet.duration or 0)
    return end * tick.numerator / tick.denominator if tick else 0.0  # Fraction arithmetic takes four times as long
