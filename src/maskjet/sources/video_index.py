"""Index of a video: the key frames where decoding can begin, and how many frames come before each; nothing is decoded.

MP4 and MOV list their packets in the header, without presentation times; only packets behind a key frame are read. Of
other files the packets are read once, from the beginning. A key frame is an entry if its index leaves no doubt: no
packet before it is shown after it. Pictures that follow it and are shown before it (open groups of pictures) are
counted before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Any

import av
import av.error

from maskjet.sources.containers import open_container, translate_ffmpeg_errors, video_of
from maskjet.sources.selection import Selection

MP4, MATROSKA = "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"
SEEKABLE = (MP4, MATROSKA)
"""Formats in which seeking finds key frames; in others packets are counted from the start."""
MOST_PASSED = 1000
"""Most video packets to skip between the seek position and the key frame."""

LEAST_BYTES = dict.fromkeys(("h264", "hevc", "av1", "vp9", "mpeg2video", "mjpeg", "prores"), 1) | {"mpeg4": 20}
"""Fewest bytes of a packet with a shown frame, by codec; other codecs may have packets without one.

DivX and Xvid write eight bytes that repeat the last picture.
"""
PROGRESSIVE = (0, 1)
"""Field orders unknown and progressive; with others, a packet may be a single field."""
_MOST_PACKETS = 10_000_000  # four days at 30 frames/s; more means a corrupt header
_MOST_LEADING = 64  # most leading packets of a key frame; H.264 and HEVC allow 16 pictures
_BEHIND = 8  # packets read behind leading ones, to check the order of times
_MOST_FAILURES = 16  # consecutive key frames that cannot be entries
_SHORTEST_STEP = 0.75  # in stated frame intervals; closer packets may be fields


@dataclass(frozen=True)
class Entry:
    """A random access point: a key frame from which all later frames can be decoded."""

    index: int
    """Index of the frame in the whole video."""
    pts: int
    """Presentation time of the key frame, in ticks of its stream."""
    packets: int
    """Number of video packets before the key frame, in file order."""

    def is_of(self, packet: av.Packet[Any]) -> bool:
        """Whether a video packet is the one of this key frame."""
        return packet.pts == self.pts and packet.is_keyframe and not packet.is_discard and packet.size > 0


@dataclass(frozen=True)
class _Key:
    """A key frame's packet."""

    number: int
    """Number of video packets before it, in file order."""
    shown: int
    """Number of shown frames among these packets."""
    time: int
    """Decoding time if listed, presentation time if read from packets; in stream ticks."""


def find_entry(name: str, selection: Selection) -> Entry | None:
    """Find the last entry at or before a selection's start, or None; SourceError if the video can't be opened."""
    with _open_index(name, selection) as index:
        failures = 0
        for key in reversed(index.keys):
            if not index.is_early(key.shown, key.time - index.keys[0].time, selection):
                continue
            entry = index.entry(key)
            if entry is not None and index.is_early(entry.index, entry.pts - index.start, selection):
                return entry if entry.packets else None
            failures += entry is None
            if failures == _MOST_FAILURES:
                break
    return None


def find_entries(name: str, seconds: float, *, most_counted: int) -> list[Entry]:
    """Find entries at least `seconds` apart, in order, without the first frame.

    At most `most_counted`, where each is reached by counting from the beginning.

    Raises:
        SourceError: The video can't be opened.
    """
    entries: list[Entry] = []
    with _open_index(name) as index:
        if not index.keys:
            return []
        length, since, failures = seconds / index.tick, index.keys[0].time, 0
        if not index.is_seekable:
            length = max(length, (index.keys[-1].time - since) / (most_counted + 1))
        for key in index.keys:
            if key.time - since < length:
                continue
            entry = index.entry(key)
            if entry is not None:
                entries.append(entry)
                since, failures = key.time, 0
            elif (failures := failures + 1) == _MOST_FAILURES:
                break
    return entries


@contextmanager
def _open_index(name: str, selection: Selection | None = None) -> Iterator[_Index]:
    with open_container(name) as container, translate_ffmpeg_errors(name):
        yield _Index(container, video_of(container), Path(name).stat().st_size, selection)


class _Index:
    """Key frames of an open video, whose file has `size` bytes; none if packets may not be frames.

    Packets that are not listed are read at once: up to the first doubtful one, or some behind a selection's start.
    """

    def __init__(
        self, container: av.container.InputContainer, stream: av.VideoStream, size: int, selection: Selection | None
    ) -> None:
        self._container, self._stream, self._size = container, stream, size
        self.tick, self.start = float(stream.time_base or 0), stream.start_time or 0
        self.is_seekable = container.format.name in SEEKABLE
        self._least_bytes = LEAST_BYTES.get(stream.codec.canonical_name, 0)
        self._listed: Any = stream.index_entries if container.format.name == MP4 and stream.frames else None
        self._offset = 0  # from the decoding time of a listed packet to the time by which it is sought
        self._times: list[int] = []  # presentation times of the shown packets, if read
        self.keys: list[_Key] = []
        if self._least_bytes and self.tick:
            keys = self._read_keys(selection) if self._listed is None else self._list_keys()
            first = self.entry(_Key(0, 0, 0)) if keys else None
            if first is not None and first.index == 0:  # frames before the first key frame may not be decodable
                self.keys = keys

    def is_early(self, index: int, ticks: int, selection: Selection) -> bool:
        """Whether a frame, `ticks` after the first one, is at or before the selection's start."""
        return index <= selection.start if selection.start_s is None else ticks * self.tick <= selection.start_s

    def entry(self, key: _Key) -> Entry | None:
        """The entry at a key frame; None if its frame index is uncertain."""
        window = slice(key.shown, key.shown + _MOST_LEADING + _BEHIND)
        times = self._times[window] if self._listed is None else self._read_times(key.number)
        leading = sum(1 for _ in takewhile(lambda time: time < times[0], times[1:]))
        later = times[1 + leading :]
        if not later or min(later) <= times[0]:
            return None
        return Entry(key.shown + leading, times[0], key.number)

    def _read_keys(self, selection: Selection | None) -> list[_Key]:
        """Read packets from the first one on, which must be a key frame."""
        keys, behind, latest, is_whole = list[_Key](), 0, -math.inf, False
        with suppress(av.error.FFmpegError):
            for number, packet in enumerate(self._container.demux(self._stream)):
                pts = packet.pts
                is_whole = behind > _MOST_LEADING or (not packet.size and packet.dts is None)  # that is the end
                if is_whole or pts is None or self._is_doubtful(packet) or number == _MOST_PACKETS:
                    break
                if packet.is_discard:
                    continue
                if packet.is_keyframe and pts > latest:
                    keys.append(_Key(number, len(self._times), pts))
                latest = max(latest, pts)
                self._times.append(pts)
                if selection is not None:
                    behind += not self.is_early(len(self._times) - 1, pts - self.start, selection)
        if not (keys and keys[0].number == 0 and self._are_frames(sorted(self._times))):
            return []
        # Before a doubtful packet, leading pictures may be missing.
        return [key for key in keys if is_whole or key.shown + _MOST_LEADING < len(self._times)]

    def _list_keys(self) -> list[_Key]:
        """The shown key frames; empty if the list is inconsistent."""
        times = [listed.timestamp for listed in self._listed]
        if not (all(map(self._is_within, self._container.streams)) and self._are_frames(times)):
            return []
        keys, shown = [], 0
        for number, listed in enumerate(self._listed):
            if listed.is_keyframe and not listed.is_discard:
                keys.append(_Key(number, shown, times[number]))
            shown += not listed.is_discard
        return keys

    def _is_within(self, stream: Any) -> bool:
        """Whether all packets listed have data within the file; reading stops at the first packet without."""
        listed = stream.index_entries
        if len(listed) > min(_MOST_PACKETS, self._size):
            return False
        return all(each.size > 0 and 0 <= each.pos <= self._size - each.size for each in listed)

    def _are_frames(self, times: Sequence[int]) -> bool:
        """Whether times increase, and their spacing tells that packets are no single fields."""
        rate, least = self._stream.average_rate, 1.0
        if not (self.is_seekable and self._stream.codec_context.field_order in PROGRESSIVE):
            least = _SHORTEST_STEP / (float(rate) * self.tick) if rate else math.inf
        return all(after - before >= least for before, after in pairwise(times))

    def _is_doubtful(self, packet: av.Packet[Any]) -> bool:
        """Whether the packet may hold no frame, or changes the decoder's configuration."""
        return packet.is_corrupt or packet.size < self._least_bytes or packet.has_sidedata("new_extradata")

    def _read_times(self, number: int) -> list[int]:
        """Presentation times of a listed key frame and the shown packets behind it; [0] if they are not as listed."""
        times, later = list[int](), 0
        for at, packet in enumerate(self._packets_from(number), number):
            listed, pts = self._listed[at], packet.pts
            is_listed = (packet.pos, packet.size) == (listed.pos, listed.size)
            if pts is None or not is_listed or self._is_doubtful(packet) or not (times or packet.is_keyframe):
                return [0]
            if not times or not packet.is_discard:
                times.append(pts)
                later += pts > times[0]
            if later == _BEHIND or at == min(number + _MOST_LEADING + _BEHIND, len(self._listed)) - 1:
                break
        return times or [0]

    def _packets_from(self, number: int) -> Iterator[av.Packet[Any]]:
        """Yield packets from a listed one on, up to the first unreadable one."""
        time = self._listed[number].timestamp
        with suppress(av.error.FFmpegError, OverflowError):
            for _ in range(2):
                self._container.seek(time + self._offset, stream=self._stream, any_frame=True)
                packets = self._container.demux(self._stream)
                packet = next(packets)
                if packet.dts in (time, None):
                    break
                self._offset += time - packet.dts
            yield from takewhile(lambda each: each.size, chain([packet], packets))
