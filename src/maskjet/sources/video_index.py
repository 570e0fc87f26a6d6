"""Index of a video: the key frames where decoding can begin, and how many frames come before each; nothing is decoded.

MP4 and MOV list their packets in the header, without presentation times; only packets around a key frame are read. Of
other files the packets are read once, from the beginning. A key frame is an entry if its index leaves no doubt: no
packet before it is shown after it. Pictures that follow it and are shown before it (open groups of pictures) are
counted before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np

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
_AROUND = 8  # packets read behind leading ones, to check the order of times
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
    """Find the last entry at or before a selection's start; None if decoding must begin at the start.

    Raises:
        SourceError: The video can't be opened.
    """
    with _open_index(name, selection.video_stream, selection) as (index, stream):
        tick, first, failures = float(stream.time_base or 0), stream.start_time or 0, 0
        if index is None:
            return None
        for key in reversed(index.keys):
            entry = index.entry(key)
            failures += entry is None
            if entry is not None and _is_early(entry.index, (entry.pts - first) * tick, selection):
                return entry if entry.packets else None
            if failures == _MOST_FAILURES:
                break
    return None


def _is_early(index: int, seconds: float, selection: Selection) -> bool:
    """Whether a frame is at or before the selection's start."""
    return seconds <= selection.start_s if selection.start_s is not None else index <= selection.start


def find_entries(name: str, seconds: float, *, most_counted: int) -> list[Entry]:
    """Find entries at least `seconds` apart, in order, without the first frame.

    At most `most_counted`, where each is reached by counting from the beginning.

    Raises:
        SourceError: The video can't be opened.
    """
    entries: list[Entry] = []
    with _open_index(name) as (index, stream):
        if index is None or not index.keys or not stream.time_base:
            return []
        length = seconds / float(stream.time_base)
        since, failures = index.keys[0].time, 0
        if stream.container.format.name not in SEEKABLE:
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
def _open_index(
    name: str, number: int | None = None, selection: Selection | None = None
) -> Iterator[tuple[_ReadIndex | _ListedIndex | None, av.VideoStream]]:
    """Build a video's index, up to a selection's start if given; None if packets may not be frames."""
    with open_container(name, number=number) as container, translate_ffmpeg_errors(name):
        stream = video_of(container, number)
        if stream.codec.canonical_name not in LEAST_BYTES or not stream.time_base:
            yield None, stream
        elif container.format.name == MP4 and stream.frames:
            yield _ListedIndex(container, stream, Path(name).stat().st_size, selection), stream
        else:
            yield _ReadIndex(container, stream, selection), stream


def _may_be_halves(stream: av.VideoStream, times: Any) -> bool:
    """Whether packets may be single fields, judged by their spacing; `times` are sorted."""
    rate, tick, kind = stream.average_rate, stream.time_base, stream.container.format.name
    if kind in SEEKABLE and stream.codec_context.field_order in PROGRESSIVE:
        return False
    return not rate or not tick or bool(np.any(np.diff(times) < _SHORTEST_STEP / float(rate * tick)))


class _ReadIndex:
    """Key frame index built by reading packets from the start, up to the first doubtful one.

    Reading may end at a selection's start.
    """

    def __init__(
        self, container: av.container.InputContainer, stream: av.VideoStream, selection: Selection | None
    ) -> None:
        self.keys: list[_Key] = []
        self._times: list[int] = []  # presentation times of the shown packets
        is_whole = self._read(container, stream, selection)
        self._in_order = np.sort(np.asarray(self._times, np.int64))
        self._latest = np.maximum.accumulate(np.asarray([-(2**63), *self._times]))  # before each shown packet
        first = self.entry(self.keys[0]) if self.keys else None
        is_certain = first is not None and not first.packets and not first.index
        if not is_certain or np.any(np.diff(self._in_order) == 0) or _may_be_halves(stream, self._in_order):
            self.keys = []
        elif not is_whole:  # leading pictures may be missing
            self.keys = [key for key in self.keys if key.shown + _MOST_LEADING < len(self._times)]

    def _read(
        self, container: av.container.InputContainer, stream: av.VideoStream, selection: Selection | None
    ) -> bool:
        """Read the packets; returns whether the end or the selection's start was reached."""
        least, behind = LEAST_BYTES[stream.codec.canonical_name], 0
        tick, first = float(stream.time_base or 0), stream.start_time or 0
        with suppress(av.error.FFmpegError):
            for number, packet in enumerate(container.demux(stream)):
                if not packet.size and packet.dts is None:
                    return True
                if packet.pts is None or _is_doubtful(packet, least) or number == _MOST_PACKETS:
                    return False
                if packet.is_discard:
                    continue
                if packet.is_keyframe:
                    self.keys.append(_Key(number, len(self._times), packet.pts))
                self._times.append(packet.pts)
                if selection is not None:
                    behind += not _is_early(len(self._times) - 1, (packet.pts - first) * tick, selection)
                    if behind > _MOST_LEADING:
                        return True
        return False

    def entry(self, key: _Key) -> Entry | None:
        """The entry at a key frame; None if its frame index is uncertain."""
        pts = self._times[key.shown]
        if self._latest[key.shown] >= pts:
            return None
        return Entry(int(np.searchsorted(self._in_order, pts)), pts, key.number)


def _is_doubtful(packet: av.Packet[Any], least: int) -> bool:
    """Whether the packet may hold no frame, or changes the decoder configuration."""
    return packet.is_corrupt or packet.size < least or packet.has_sidedata("new_extradata")


class _ListedIndex:
    """Key frame index from an MP4's sample table; the file, of `size` bytes, is read only around key frames.

    None is listed behind a selection's start, but for leading pictures.
    """

    def __init__(
        self, container: av.container.InputContainer, stream: av.VideoStream, size: int, selection: Selection | None
    ) -> None:
        self._container, self._stream, self._size = container, stream, size
        self._listed, self._least = stream.index_entries, LEAST_BYTES[stream.codec.canonical_name]
        self._offset = 0  # offset from decoding time to seek time
        self.keys = self._read_keys()
        begin = self._listed[0].timestamp if self.keys else 0
        first = self.entry(_Key(0, 0, begin)) if self.keys else None
        if first is None or first.index:  # frames before the first key frame may not be decodable
            self.keys = []
        elif selection is not None:
            tick = float(stream.time_base or 0)
            self.keys = [key for key in self.keys if _is_early(key.shown, (key.time - begin) * tick, selection)]

    def _read_keys(self) -> list[_Key]:
        """The shown key frames; empty if the sample table is inconsistent."""
        if not all(self._is_within(stream.index_entries) for stream in self._container.streams):
            return []
        times = [listed.timestamp for listed in self._listed]
        if any(after <= before for before, after in pairwise(times)) or _may_be_halves(self._stream, times):
            return []
        keys, shown = [], 0
        for number, listed in enumerate(self._listed):
            if listed.is_keyframe and not listed.is_discard:
                keys.append(_Key(number, shown, times[number]))
            shown += not listed.is_discard
        return keys

    def _is_within(self, listed: Any) -> bool:
        """Whether all packets have data within the file; reading stops at the first packet without."""
        if len(listed) > min(_MOST_PACKETS, self._size):
            return False
        return all(each.size > 0 and 0 <= each.pos <= self._size - each.size for each in listed)

    def entry(self, key: _Key) -> Entry | None:
        """The entry at a key frame; None if its frame index is uncertain."""
        leading, later, pts = 0, 0, None
        for at, packet in self._packets(key.number):
            if packet is None or packet.pts is None or _is_doubtful(packet, self._least):
                return None
            if at == key.number:
                pts = packet.pts
                if not packet.is_keyframe:
                    return None
            elif pts is not None and not packet.is_discard:
                leading += packet.pts < pts
                later += packet.pts > pts
                if packet.pts == pts or (later and packet.pts < pts):
                    return None
            if later == _AROUND:
                break
        if pts is None or not (later or key.number + 1 == len(self._listed)):
            return None
        return Entry(key.shown + leading, pts, key.number)

    def _packets(self, first: int) -> Iterator[tuple[int, av.Packet[Any] | None]]:
        """Yield (number, packet) from packet `first` on; None for one that differs from the sample table."""
        time = self._listed[first].timestamp
        packets = self._packets_from(time)
        packet = next(packets, None)
        if packet is not None and packet.dts is not None and packet.dts != time:
            self._offset += time - packet.dts
            packets = self._packets_from(time)
            packet = next(packets, None)
        for at in range(first, min(first + _MOST_LEADING + _AROUND, len(self._listed))):
            if packet is None or packet.pos != self._listed[at].pos or packet.size != self._listed[at].size:
                yield at, None
                return
            yield at, packet
            packet = next(packets, None)

    def _packets_from(self, time: int) -> Iterator[av.Packet[Any]]:
        """Yield packets from a decoding time on, up to the first unreadable one."""
        with suppress(av.error.FFmpegError):
            self._container.seek(time + self._offset, stream=self._stream, any_frame=True)
            yield from takewhile(lambda packet: packet.size, self._container.demux(self._stream))
