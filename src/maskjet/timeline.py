"""Where frames of a video are missing, told from its packets' times and from the bytes between them.

A gap in the times alone is no loss: screens and phones record frames when something changes. Nor are bytes that hold
no packet: containers pad. Both at once are, and so is a gap beside a packet that the demuxer or the decoder calls
damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import av

_MP4 = "mov,mp4,m4a,3gp,3g2,mj2"
_BETWEEN = {"matroska,webm": 64, "flv": 64, "avi": 64, _MP4: 512}
"""Most bytes of headers between two packets, in the formats that have no other padding."""
_STATE_THEIR_END = ("matroska,webm", "flv", "avi", "gif", _MP4)
_MOST_MISSING = 10**6


@dataclass(frozen=True)
class Gap:
    """Frames that are missing before one that came."""

    count: int
    """How many, at least."""
    is_exact: bool
    """Whether it is that many."""


class Timeline:
    """Sees a video's packets in the order of the file, and its pictures in the order they are shown.

    Args:
        container: The opened file.
        stream: Its video.
    """

    def __init__(self, container: av.container.InputContainer, stream: av.VideoStream) -> None:
        rate = stream.average_rate
        self._step = float(1 / (rate * stream.time_base)) if rate and stream.time_base else None
        self._number = stream.index
        # MP4 lists its packets in its head: none can be missed, and none lies where the last one ended.
        self._between = None if container.format.name == _MP4 and stream.frames else _BETWEEN.get(container.format.name)
        self._is_listed = container.format.name == _MP4 and bool(stream.frames)
        self._end: int | None = None  # in the file, of the last packet
        self._before: int | None = None  # when the last one of the video is decoded
        self._was_corrupt = False
        self._delay = 0  # most that one is shown after it is decoded
        self._suspects: list[tuple[int, int]] = []  # from when to when packets may be missing
        self._shown: int | None = None
        self._is_constant = True

    @property
    def step(self) -> float | None:
        """Time from one frame to the next, in the stream's unit; None if it is not known to be constant."""
        return self._step if self._is_constant else None

    def see(self, packet: av.Packet[Any]) -> None:
        """Take note of a packet of any stream."""
        has_hole = False
        if packet.pos is not None and self._between is not None:
            has_hole = self._end is not None and packet.pos - self._end > self._between
            self._end = max(self._end or 0, packet.pos + packet.size)
        if packet.stream_index != self._number:
            self._was_corrupt |= has_hole  # what is missing may be the video's all the same
            return
        time = packet.dts if packet.dts is not None else packet.pts
        if time is None:
            return
        self._delay = max(self._delay, (packet.pts or time) - time)
        if has_hole or packet.is_corrupt or self._was_corrupt:
            self._suspect(time)
        self._was_corrupt = packet.is_corrupt
        self._before = time

    def suspect(self) -> None:
        """Take note that the decoder finds damage at the last packet."""
        if self._before is not None:
            self._suspect(self._before)
        self._was_corrupt = True

    def _suspect(self, time: int) -> None:
        before = time if self._before is None else self._before
        self._suspects.append((min(before, time), max(before, time) + self._delay))

    def show(self, pts: int, lost: int) -> Gap | None:
        """Take note of a picture.

        Args:
            pts: When it is shown.
            lost: How many packets since the last one are known to have given none.

        Returns:
            What else is missing before it.
        """
        before, self._shown = self._shown, pts
        if before is None or self._step is None or self._is_listed:
            return None
        margin = self._step / 2
        is_suspect = any(since - margin < pts and until + margin > before for since, until in self._suspects)
        self._suspects = [(since, until) for since, until in self._suspects if until + margin > before]
        steps = (pts - before) / self._step
        if not is_suspect:
            self._is_constant &= 0.5 < steps < 1.5
            return None
        missing = round(steps) - 1 - lost
        if steps <= 0 or missing > _MOST_MISSING:  # times are damaged, too
            return Gap(0, is_exact=False)
        return Gap(missing, is_exact=self._is_constant) if missing > 0 else None


def states_end(container: av.container.InputContainer, stream: av.VideoStream) -> bool:
    """Whether the file's head or index says how many frames or seconds there are."""
    if container.format.name == _MP4:
        return bool(stream.frames)
    return container.format.name in _STATE_THEIR_END


def stated_packets(container: av.container.InputContainer, stream: av.VideoStream) -> int:
    """How many packets the video has by the file's head; 0 if it does not say."""
    if container.format.name == _MP4 and stream.frames:
        return len(stream.index_entries)  # without those that an edit list cuts away
    return stream.frames


def announced_end_s(stream: av.VideoStream) -> float:
    """When the last frame ends, as the file's head says; 0 if it does not say."""
    if stream.duration is not None and stream.time_base is not None:
        return float((stream.duration + (stream.start_time or 0)) * stream.time_base)
    try:
        hours, minutes, seconds = (stream.metadata.get("DURATION") or "0:0:0").split(":")  # Matroska
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    except ValueError:
        return 0.0


def timed_by_index(packets: Iterator[av.Packet[Any]], stream: av.VideoStream) -> Iterator[av.Packet[Any]]:
    """An AVI's packets at their times.

    AVI has no times: FFmpeg counts packets, and after one that it could not find all others come too early. The index
    at the file's end says which number the packet at a position has.
    """
    entries, number = stream.index_entries, 0
    count = len(entries) if len(entries) == stream.frames else 0
    for packet in packets:
        if packet.stream_index == stream.index and packet.pos is not None and packet.dts is not None:
            while number < count and entries[number].pos < packet.pos:
                number += 1
            if number < count and entries[number].pos == packet.pos:
                late = number - packet.dts
                packet.dts += late
                packet.pts = None if packet.pts is None else packet.pts + late
        yield packet
