"""Detection of missing frames in a video, from its packets' times and the bytes between them.

A gap in time alone is no loss: screen recorders and phones write a frame only when something changes. Bytes outside
any packet alone are no loss: containers pad. Both at once are a loss, and so is a gap in time next to a packet that the
demuxer or decoder reports as damaged. The beginning is missing if no key frame comes first, or if the format's own
structure shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av

from maskjet.media import beginnings
from maskjet.media.matroska import first_cluster

MP4 = "mov,mp4,m4a,3gp,3g2,mj2"
MATROSKA, _TS, _FLASH = "matroska,webm", "mpegts", "flv"
_BETWEEN = {MATROSKA: 64, _FLASH: 64, "avi": 64, MP4: 4096, _TS: 2 * 188}
"""Most bytes between two packets by format: headers and, in transport streams, stuffing."""
_TS_TABLES = 3 * 188  # most bytes of tables and clock packets per frame interval
_STATE_THEIR_END = (MATROSKA, _FLASH, "avi", "gif", MP4)
_CHUNK_HEADER = 8  # bytes of the header of an AVI's packet
_FEWEST_STEPS = 5  # frame intervals needed to count missing frames by a constant rate


@dataclass(frozen=True)
class Gap:
    """A run of missing frames before a known one."""

    count: int
    """Number of missing frames, 0 if unknown; an estimate unless `is_exact`."""
    is_exact: bool
    """Whether exactly `count` frames are missing."""


class Timeline:
    """Finds missing frames by following a video's packets in file order and its frames in presentation order.

    Args:
        container: The opened file.
        stream: Its video stream.
        path: Path of the file; None for a camera or network stream.

    Attributes:
        is_constant: Whether all frames so far came at the stated rate.
        lacks_index: Whether this is an AVI without its index, where FFmpeg counts only the packets it finds.
        is_doubtful: Whether frames may be missing among the last ones, in a stream that does not state its end.
    """

    def __init__(
        self, container: av.container.InputContainer, stream: av.VideoStream, path: Path | None = None
    ) -> None:
        rate = stream.average_rate
        self.is_constant = True
        self.is_doubtful = False
        self._open_end: int | None = None  # time after which frames may be missing among the last ones
        self._step = float(1 / (rate * stream.time_base)) if rate and stream.time_base else 0.0
        self._longest = self._step
        self._tick_s = float(stream.time_base or 0)
        self._number, self._packet_id = stream.index, stream.id
        self._format, self._path = container.format.name, path
        # MP4 lists its packets in its header: none can be missed, and they need not be contiguous.
        self._is_listed = self._format == MP4 and bool(stream.frames)
        self._index = _Index(stream) if self._format == "avi" and stream.frames else None
        self.lacks_index = self._index is not None and not self._index.packets
        self._between = None if self._is_listed else _BETWEEN.get(self._format)
        self._starts_at_zero = self._format == MATROSKA
        self._has_its_size = path is None or self._format != _FLASH or beginnings.flash_has_its_size(path)
        self._is_interleaved = self._format in (_TS, MP4)  # packets overlap, or are not read in file order
        self._end = first_cluster(path) or 0 if path and self._format == MATROSKA else None
        """Byte position where the last packet ends; if interleaved, where the video's last packet starts."""
        self._video_size = 0
        self._others: list[tuple[int, int]] = []  # (byte position, size) of packets of other streams
        self._before: int | None = None  # the last video packet's decoding time, else its presentation time
        self._decoded: int | None = None  # its decoding time, if stated
        self._was_damaged = False
        self._delay = 0  # longest time from decoding to presentation so far
        self._suspects: list[tuple[int, int]] = []  # (start, end) of spans in which packets may be missing
        self._has_key = False  # without one no picture can be shown
        self._has_lost_count = False  # an unknown number is missing, in an AVI or at the beginning
        length_s = (container.duration or 0) / av.time_base
        self._most_missing = length_s / (self._step * self._tick_s) if length_s and self._step else float("inf")
        self._steps = 0  # undamaged frame intervals so far
        self._last: int | None = None

    @property
    def lists_packets(self) -> bool:
        """Whether the file lists its packets, so that none can be missing unnoticed."""
        return self._is_listed

    @property
    def is_clean(self) -> bool:
        """Whether no packet since the last frame is damaged, and none seems to be missing."""
        return not (self._suspects or self._was_damaged or self._has_lost_count)

    def see(self, packet: av.Packet[Any]) -> None:
        """Record a packet of any stream; an AVI's video packet gets its time corrected."""
        is_damaged = packet.is_corrupt
        if packet.pos is not None and self._between is not None:
            is_damaged |= self._has_hole(packet, packet.pos)
        if packet.stream_index != self._number:
            is_damaged |= self._format == _FLASH and packet.stream.type == "video"  # a second one is damage
            self._was_damaged |= is_damaged  # the missing packet may be the video's
            return
        if self._index is not None:
            is_damaged = self._look_up(packet, is_damaged or self._was_damaged or self._before is None)
            self._was_damaged = False
        shown = packet.dts if packet.pts is None else packet.pts
        time = packet.pts if packet.dts is None else packet.dts
        if shown is None or time is None:
            return
        self._delay = max(self._delay, shown - time)
        if self._between is not None and self._index is None:
            is_damaged |= self._lacks_some_before(packet, time)
        if is_damaged or self._was_damaged:
            if self._before is None and self._starts_at_zero:  # the first packet was not read
                self._last, self._before = -round(self._step), -round(self._step)
            is_first = self._before is None and self._between is not None
            self._has_lost_count |= is_first and (self._format == _TS or time > self._step / 2)  # else the first frame
            self._suspect(time)
        self._was_damaged = packet.is_corrupt
        self._before, self._decoded = time, packet.dts

    def end(self, *, is_cut: bool, states_end: bool) -> None:
        """Record the end: if frames are not stored in presentation order, some may be missing among the last ones.

        Args:
            is_cut: Whether the file ends before the end it states.
            states_end: Whether the file states its end.
        """
        if self._before is None or not self._delay:
            return
        if is_cut:
            self._is_listed = False  # listed packets are missing
            self._suspects.append((self._before, self._before + 2 * self._delay))
        elif not states_end:
            self._open_end = self._before

    def suspect(self, pts: int | None = None) -> None:
        """Record damage the decoder found: in the picture shown at `pts` or, if None, at the last packet."""
        if pts is not None:
            self._suspects.append((pts, pts))
            return
        if self._before is not None:
            self._suspect(self._before)
        self._was_damaged = True

    def _look_up(self, packet: av.Packet[Any], is_damaged: bool) -> bool:
        """Correct the time of an AVI's packet; returns whether the index lists others since the last one."""
        assert self._index is not None
        passed = self._index.find(packet, is_damaged=is_damaged)
        self._has_lost_count |= passed is None and is_damaged and self._before is not None
        if passed and self._before is None and packet.dts is not None:
            self._before = packet.dts - passed - 1
            self._last = (packet.dts if packet.pts is None else packet.pts) - passed - 1
        return bool(passed)

    def _lacks_some_before(self, packet: av.Packet[Any], time: int) -> bool:
        """Whether packets are missing before a video packet: no beginning, no key frame, or times out of order."""
        self._has_key |= packet.is_keyframe
        is_lacking = not self._has_key
        if self._before is not None:
            if not self._is_interleaved and packet.dts is not None and self._decoded is not None:
                is_lacking |= packet.dts < self._decoded
            return is_lacking
        if self._path is not None and packet.pos is not None and self._format == _FLASH:
            is_lacking |= not self._has_its_size and time > self._step
            is_lacking |= not beginnings.flash_starts_whole(self._path, packet.pos)
        elif self._path is not None and self._format == _TS:
            is_lacking |= not beginnings.transport_starts_whole(self._path, self._packet_id)
        return is_lacking

    def _has_hole(self, packet: av.Packet[Any], start: int) -> bool:
        """Whether the bytes before a packet belong to no packet, or to two."""
        assert self._between is not None
        if not self._is_interleaved:
            has_hole = self._end is not None and not 0 <= start - self._end <= self._between
            self._end = start + packet.size
            return has_hole
        if packet.stream_index != self._number:
            self._others.append((start, packet.size))
            return False
        inside = [others for at, others in self._others if self._end is not None and at < start]
        self._others = [(at, others) for at, others in self._others if at > start]
        most = self._between + (self._video_size + sum(inside)) * 188 // 184 + 188 * len(inside)
        if self._format == _TS:
            time = 0 if packet.dts is None or self._before is None else packet.dts - self._before
            most += _TS_TABLES * max(1, round(time / self._step) if self._step else 1)
        has_hole = self._end is not None and start - self._end > most
        self._end, self._video_size = start, packet.size
        return has_hole

    def _suspect(self, time: int) -> None:
        before = time if self._before is None else self._before
        self._suspects.append((min(before, time), max(before, time) + self._delay))

    def place(self, pts: int, *, has_damage: bool) -> Gap | None:
        """Record a frame, shown or lost.

        Args:
            pts: Presentation time of the frame.
            has_damage: Whether any damage or loss was found so far.

        Returns:
            The frames missing between the last frame and this one; None if there are none.
        """
        before, self._last = self._last, pts
        if self._has_lost_count:
            self._has_lost_count = False
            return Gap(0, is_exact=False)
        if before is None or not self._step:
            return None
        is_suspect = self.is_suspect(before, pts)
        self._suspects = [(since, until) for since, until in self._suspects if until + self._step / 2 > before]
        steps = (pts - before) / self._step
        missing = round(steps) - 1
        self._steps += not is_suspect
        if self._is_listed:
            self.is_constant &= missing == 0
            return Gap(0, is_exact=False) if has_damage and not steps else None  # the decoder lost count
        if is_suspect and 0 < missing <= self._most_missing:
            is_known = self._index.is_full if self._index is not None else self._steps >= _FEWEST_STEPS
            return Gap(missing, is_exact=self.is_constant and is_known)
        is_regular = 0.5 < steps < 1.5 or not self.is_constant
        if (is_suspect and steps <= 0) or (not is_regular and (has_damage or is_suspect or not self._has_its_size)):
            return Gap(0, is_exact=False)  # times are damaged, too, or packets were cut out
        if self._open_end is not None and pts > self._open_end and missing > 0 and self.is_constant:
            self.is_doubtful = True
        if not is_suspect:
            self.is_constant &= 0.5 < steps < 1.5
            self._longest = max(self._longest, pts - before)
        return None

    def is_suspect(self, since: int, until: int) -> bool:
        """Whether packets may be missing between two times."""
        margin = self._step / 2
        return any(first - margin < until and last + margin > since for first, last in self._suspects)

    def frames_in(self, seconds: float) -> int:
        """Number of frames that would fill the seconds from the last packet's end to the stated end."""
        if not self._step or seconds < (self._longest - self._step / 4) * self._tick_s:
            return 0
        return round(seconds / (self._step * self._tick_s))


class _Index:
    """The index at the end of an AVI, which lists each packet's byte position.

    AVI packets have no times. FFmpeg counts packets instead, so all packets after one it could not find come too early.
    """

    def __init__(self, stream: av.VideoStream) -> None:
        entries = stream.index_entries
        self._entries = entries
        self.packets = len(entries) if len(entries) and entries[-1].timestamp + 1 == stream.frames else 0
        """Number of listed packets; 0 if the index is missing or damaged. Repetitions of a frame are not listed."""
        self.is_full = self.packets == stream.frames
        self._next = 0
        self._late = 0

    def find(self, packet: av.Packet[Any], *, is_damaged: bool) -> int | None:
        """Correct a packet's time by its place in the index.

        Args:
            packet: Packet, found by its byte position; its times are changed.
            is_damaged: Whether packets may be missing before it; if not, further ones in the index are taken as wrong.

        Returns:
            Number of listed packets between the last one found and this one; None if this one is not listed.
        """
        if packet.pos is None or packet.dts is None:
            return None
        start, number = packet.pos - _CHUNK_HEADER, self._next
        while number < self.packets and self._entries[number].pos < start:
            number += 1
        is_found = number < self.packets and self._entries[number].pos == start
        if is_found and is_damaged:
            self._late = self._entries[number].timestamp - packet.dts
        packet.dts += self._late
        packet.pts = None if packet.pts is None else packet.pts + self._late
        if not is_found:
            return None
        passed, self._next = number - self._next, number + 1
        return passed if is_damaged else 0


def states_end(container: av.container.InputContainer, stream: av.VideoStream) -> bool:
    """Whether the file's header or index states the number of frames or the duration."""
    if container.format.name == MP4:
        return bool(stream.frames)
    return container.format.name in _STATE_THEIR_END


def stated_packets(container: av.container.InputContainer, stream: av.VideoStream) -> int:
    """Number of video packets that the file's header states; 0 if it states none."""
    if container.format.name == MP4 and stream.frames:
        return len(stream.index_entries)  # without those that an edit list cuts away
    return (container.format.name == "avi" and _Index(stream).packets) or stream.frames


def announced_end_s(container: av.container.InputContainer, stream: av.VideoStream) -> float:
    """End of the last frame in seconds, as the file's header states it; 0 if it does not."""
    if container.format.name not in _STATE_THEIR_END:  # FFmpeg's duration is a guess
        return 0.0
    if stream.duration is not None and stream.time_base is not None:
        start = stream.start_time or 0 if states_end(container, stream) else 0  # fragments: the end in decoding time
        return float((stream.duration + start) * stream.time_base)
    try:
        hours, minutes, seconds = (stream.metadata.get("DURATION") or "0:0:0").split(":")  # Matroska
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    except ValueError:
        return 0.0
