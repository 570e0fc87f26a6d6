"""Videos cut into parts at key frames, found without decoding.

An MP4 lists its packets. A frame's index is the number of shown packets before its own, plus the pictures that follow
it in the file and are shown before it (open groups of pictures); only these are read. Packets that an edit list cuts
away are decoded, but not shown, and not counted. Other files are read once from beginning to end.

A key frame becomes an entry only if its packets leave no doubt about its index: seeking must find it, no packet before
it may be shown after it, and the other way round. Where there is doubt, the part is longer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import av.error

from maskjet.errors import InputError
from maskjet.media.containers import border_of_ffmpeg, is_stream, open_container
from maskjet.media.decoding import ON_CPU, Decoding
from maskjet.media.folders import is_image_path
from maskjet.media.frames import open_source
from maskjet.media.intra import is_intra
from maskjet.media.parts import MOST_PASSED, CannotEnterError, Entry, PartSource, VideoPart, first_wanted
from maskjet.media.selection import Selection, select_frames
from maskjet.media.skipping import CODECS, LEAST_BYTES, PacketSkipper
from maskjet.media.source import Source
from maskjet.media.timeline import MATROSKA, MP4, Timeline

if TYPE_CHECKING:
    from av.index import IndexEntries

__all__ = ["CannotEnterError", "Entry", "VideoPart", "cut_video", "open_part"]

_WHOLE = VideoPart(0, None, None)
_MOST_LISTED = 10_000_000  # packets, four days at 30 frames/s; an absurd header states more
_MOST_LEADING = 64  # packets shown before the key frame that they follow; H.264 and HEVC allow 16 pictures
_AROUND = 8  # packets read before the key frame, and after its leading ones, to see that times are in order
_MOST_FAILURES = 16  # key frames that turn out to be no entries
_MOST_WITHOUT_ENTRY = 16  # parts; each is read from the beginning of the file
_PROGRESSIVE = (0, 1)  # field orders: unknown and progressive; with the others, a packet may be half a frame


def cut_video(name: str, *, seconds: float = 10.0) -> list[VideoPart]:
    """Cut a video into parts that begin at key frames, without decoding it.

    The parts joined are the whole video: `open_part` gives the frames that `open_source` gives.

    Args:
        name: Path of the video.
        seconds: Least length of a part, but for the last one; it ends at the next key frame.

    Returns:
        The parts in order; the last one goes to the end. Parts without an entry are at most 16, as each is read from
        the beginning. One part, if the number of frames before any other is not certain.

    Raises:
        SourceError: The video can't be opened.
        InputError: `seconds` is not a positive number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise InputError(f"seconds must be a positive number, got {seconds!r}.")
    if is_stream(name):
        raise InputError(f"name must be the path of a video, got {name!r}: cameras and URLs can't be cut.")
    if is_image_path(name):  # an animation, whose frames are no key frames
        return [_WHOLE]
    with open_container(name) as container, border_of_ffmpeg(name):
        stream = container.streams.video[0]
        codec, tick, kind = stream.codec.canonical_name, stream.time_base, container.format.name
        if not tick or codec not in CODECS:
            return [_WHOLE]
        may_enter = stream.codec_context.field_order in _PROGRESSIVE
        if may_enter and kind == MP4 and stream.frames:
            return _parts(_Listing(container, stream, Path(name).stat().st_size).entries(float(seconds / tick)))
        start, keys = stream.start_time or 0, list(_read_keys(container, stream, Path(name)))
    length = float(seconds / tick)
    if may_enter and kind in (MP4, MATROSKA):
        entries = _found(name, _spaced(keys, start, length))
        if entries:
            return _parts(entries)
    longest = (keys[-1].pts - start) / _MOST_WITHOUT_ENTRY if keys else 0
    parts = _parts(_spaced(keys, start, max(length, longest))[: _MOST_WITHOUT_ENTRY - 1])
    return [replace(part, entry=None) for part in parts]


def open_part(name: str, part: VideoPart, *, every: int = 1, decoding: Decoding = ON_CPU) -> Source | None:
    """Open a part of a video: its frames whose index in the whole video is a multiple of `every`.

    Args:
        name: Path of the video.
        part: A part of `cut_video`, or one without its entry, which is always exact, but demuxes from the beginning.
        every: Distance between two frames given, in frames.
        decoding: Where it is decoded.

    Returns:
        The opened source, whose frames have the index, time and pixels that they have in the whole video; None if the
        part has no frame at a multiple of `every`.

    Raises:
        CannotEnterError: The part's entry does not hold; also while frames are read. Drop the frames that came, and
            open the part without its entry.
        SourceError: The video can't be opened.
        InputError: `part` or `every` is out of range.
        DeviceError: The GPU failed; also while frames are read.
    """
    every = select_frames(every).every
    is_placed = part.entry is None or (part.entry.index == part.first and part.entry.packets >= 0)
    if part.first < 0 or (part.count is not None and part.count < 1) or not is_placed:
        raise InputError(f"part must be one of cut_video's, got {part!r}.")
    if part == _WHOLE:
        return open_source(name, every=every, decoder=decoding)
    if part.count is not None and first_wanted(part, every) >= part.first + part.count:
        return None
    return PartSource(name, part, every=every, decoding=decoding)


def _parts(starts: Sequence[Entry]) -> list[VideoPart]:
    """The parts between the beginning, the entries and the end."""
    firsts = [0, *(entry.index for entry in starts)]
    counts = [*(after - before for before, after in pairwise(firsts)), None]
    return [VideoPart(*part) for part in zip(firsts, counts, [None, *starts], strict=True)]


def _spaced(keys: Sequence[Entry], start: int, length: float) -> list[Entry]:
    """The key frames that begin parts of at least this length, in ticks."""
    chosen = []
    for key in keys:
        if key.pts - start >= length:
            chosen.append(key)
            start = key.pts
    return chosen


def _read_keys(container: av.container.InputContainer, stream: av.VideoStream, path: Path) -> Iterator[Entry]:
    """The key frames in all packets of a file, as long as the frames before them can be counted with certainty."""
    skipper = PacketSkipper(stream, Selection(start=sys.maxsize), Timeline(container, stream, path))
    codec, extradata = stream.codec.canonical_name, stream.codec_context.extradata
    index = packets = 0
    intra: set[int | None] = set()  # presentation times of key frames ahead
    with suppress(av.error.FFmpegError):  # the rest can't be read
        for packet in container.demux():
            is_ours = packet.stream_index == stream.index
            if is_ours and packet.is_keyframe and is_intra(packet, codec, extradata):
                intra.add(packet.pts)
            taken = skipper.take(packet)
            index += len(taken.skipped)
            packets += sum(dropped.stream_index == stream.index for dropped in taken.dropped)
            if taken.skipped and skipper.cut in intra:
                assert skipper.cut is not None
                yield Entry(index, skipper.cut, packets)
                intra = {pts for pts in intra if pts is not None and pts > skipper.cut}
            if taken.ready:
                return


def _found(name: str, keys: Sequence[Entry]) -> list[Entry]:
    """The key frames that seeking finds."""
    found, failures = [], 0
    with open_container(name) as container, border_of_ffmpeg(name):
        stream = container.streams.video[0]
        for key in keys:
            if _is_found(container, stream, key):
                found.append(key)
            else:
                failures += 1
                if failures == _MOST_FAILURES:
                    break
    return found


def _is_found(container: av.container.InputContainer, stream: av.VideoStream, key: Entry) -> bool:
    """Whether seeking finds the key frame."""
    return any(map(key.is_of, islice(_packets_from(container, stream, key.pts), MOST_PASSED)))


def _packets_from(
    container: av.container.InputContainer, stream: av.VideoStream, time: int, *, any_frame: bool = False
) -> Iterator[av.Packet[Any]]:
    """The video's packets after seeking, up to the first one that can't be read."""
    with suppress(av.error.FFmpegError):
        container.seek(time, stream=stream, any_frame=any_frame)
        yield from takewhile(lambda packet: packet.size, container.demux(stream))


class _Listing:
    """An MP4's list of its video's packets, in the order of the file.

    Args:
        container: The opened file.
        stream: Its video.
        size: Bytes of the file.
    """

    def __init__(self, container: av.container.InputContainer, stream: av.VideoStream, size: int) -> None:
        self._container, self._stream, self._listed = container, stream, stream.index_entries
        self._codec, self._extradata = stream.codec.canonical_name, stream.codec_context.extradata
        self._size = size

        self._offset = 0  # from a decoding time to the time that seeking takes

    def entries(self, length: float) -> list[Entry]:
        """Key frames at least this many ticks apart where decoding can begin."""
        keys = self._keys()
        first = self._entry(0, 0) if keys else None
        if first is None or first.index:  # pictures before the first key frame may not be decodable
            return []
        entries: list[Entry] = []
        since, failures = self._listed[0].timestamp, 0
        for number, shown in keys:
            time = self._listed[number].timestamp
            if time - since < length:
                continue
            entry = self._entry(number, shown)
            if entry is not None and _is_found(self._container, self._stream, entry):
                entries.append(entry)
                since = time
            else:
                failures += 1
                if failures == _MOST_FAILURES:
                    break
        return entries

    def _keys(self) -> list[tuple[int, int]]:
        """Number of each shown key frame in the list, and of the shown packets before it; none if the list is wrong."""
        keys, shown, last, least = [], 0, None, LEAST_BYTES.get(self._codec, 0)
        if not all(self._is_within(stream.index_entries) for stream in self._container.streams):
            return []
        for number, listed in enumerate(self._listed):
            time = listed.timestamp
            if (last is not None and time <= last) or listed.size < least:
                return []
            if not listed.is_discard:
                if listed.is_keyframe:
                    keys.append((number, shown))
                shown += 1
            last = time
        return keys

    def _is_within(self, listed: IndexEntries) -> bool:
        """Whether the packets have data, all within the file: reading ends at the first one of any stream without."""
        if len(listed) > min(_MOST_LISTED, self._size):
            return False
        return all(each.size > 0 and 0 <= each.pos <= self._size - each.size for each in listed)

    def _entry(self, number: int, shown: int) -> Entry | None:
        """The key frame with this number in the list, if the packets around it leave no doubt about its index.

        Args:
            number: Number of its packet.
            shown: Number of shown packets before it.
        """
        pts, leading, later, is_complete = None, 0, 0, False
        before: list[int] = []
        for at, packet in self._packets(max(number - _AROUND, 0), number + _MOST_LEADING + _AROUND):
            if packet is None or packet.pts is None or packet.is_corrupt or packet.has_sidedata("new_extradata"):
                return None
            if at < number:
                before += [packet.pts] * (not packet.is_discard)
            elif at == number:
                pts = packet.pts
                if not packet.is_keyframe or not is_intra(packet, self._codec, self._extradata):
                    return None
            elif pts is not None and not packet.is_discard:
                leading += packet.pts < pts
                later += packet.pts > pts
                if packet.pts == pts or (later and packet.pts < pts):
                    return None
            is_complete = later > 0 or at == len(self._listed) - 1
            if later == _AROUND:
                break
        if pts is None or not is_complete or max(before, default=pts - 1) >= pts:
            return None
        return Entry(shown + leading, pts, number)

    def _packets(self, first: int, end: int) -> Iterator[tuple[int, av.Packet[Any] | None]]:
        """The packets from one number to another or the end, with their numbers; None for one that is not as listed."""
        time = self._listed[first].timestamp
        packets = self._packets_from(time)
        packet = next(packets, None)
        if packet is not None and packet.dts is not None and packet.dts != time:
            self._offset += time - packet.dts
            packets = self._packets_from(time)
            packet = next(packets, None)
        for at in range(first, min(end, len(self._listed))):
            if packet is None or packet.pos != self._listed[at].pos or packet.size != self._listed[at].size:
                yield at, None
                return
            yield at, packet
            packet = next(packets, None)

    def _packets_from(self, time: int) -> Iterator[av.Packet[Any]]:
        """The packets from a decoding time on."""
        return _packets_from(self._container, self._stream, time + self._offset, any_frame=True)
