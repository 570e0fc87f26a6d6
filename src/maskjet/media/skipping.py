"""Starting late in a video: packets that need no decoding.

Decoding can begin at a key frame, but frames shown before it may refer to earlier ones (open groups of pictures). So it
begins at the second last key frame before the first frame asked for: the frames are those that decoding from the
beginning gives, bit for bit. Packets before it are read and counted, which finds missing frames as always, but not
decoded. Some encoders mark frames as key frames from which the picture is refreshed bit by bit; after those decoding
begins at the beginning.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import av
from av.video.frame import PictureType, VideoFrame

from maskjet.errors import SourceError
from maskjet.media.selection import Selection
from maskjet.media.timeline import Timeline

CODECS = {"h264", "hevc", "av1", "vp9", "mpeg4", "mpeg2video", "mjpeg", "prores"}
"""Codecs in which a packet is a shown frame."""
LEAST_BYTES = {"mpeg4": 20}
"""Smaller packets may have no picture: DivX and Xvid write eight bytes that repeat the last one."""
_MOST_HELD, _MOST_HELD_BYTES = 5000, 1 << 28  # packets; a video may have no second key frame
_LONGEST_STEP = 1.5  # frame intervals
_SHORTEST_STEP = 0.75  # of the stated frame interval; closer packets may be fields, or frames that are never shown


class CannotSkipError(SourceError):
    """Decoding can't begin at the key frame chosen; all frames before it must be decoded."""

    def __init__(self) -> None:
        super().__init__("start must be found by decoding all frames before it.")


def check_is_whole(picture: VideoFrame, cut: int) -> None:
    """Check the first picture decoded: that of the key frame, which refers to no other.

    Args:
        picture: The first picture not shown before `cut`.
        cut: Presentation time of the key frame.

    Raises:
        CannotSkipError: It is another picture, or refers to others.
    """
    if picture.pts != cut or picture.pict_type != PictureType.I or picture.is_corrupt:
        raise CannotSkipError


@dataclass(frozen=True)
class Taken:
    """What becomes of the packets so far."""

    dropped: Sequence[av.Packet[Any]] = ()
    """Packets of all streams that need no decoding, in file order."""
    skipped: Sequence[int] = ()
    """Presentation times of the frames that are not decoded, in order."""
    ready: Sequence[av.Packet[Any]] = ()
    """Packets to decode. Once there are any, all further ones are to be decoded."""


class PacketSkipper:
    """Holds packets back until it is known from which key frame on they must be decoded.

    Args:
        stream: The video stream; nothing of it is decoded yet.
        selection: Frames asked for.
        scout: A timeline of its own, which sees packets before it is decided on them.
    """

    def __init__(self, stream: av.VideoStream, selection: Selection, scout: Timeline) -> None:
        rate, tick = stream.average_rate, stream.time_base
        self._step = float(1 / (rate * tick)) if rate and tick else 0.0
        self._selection, self._scout, self._number = selection, scout, stream.index
        self._tick_s = float(tick or 0)
        self._first_pts = stream.start_time or 0
        is_known = stream.container.format.name != "avi"  # whose packets get their times from its index
        self._least_bytes = LEAST_BYTES.get(stream.codec.canonical_name, 0)
        self._can_skip = is_known and stream.codec.canonical_name in CODECS and self._step > 0
        self._held: list[av.Packet[Any]] = []
        self._keys: list[int] = []  # positions of key frames in `_held`
        self._bytes = 0
        self._frames = 0  # the video's packets so far
        self._last: int | None = None  # presentation time of the last frame skipped
        self.cut: int | None = None
        """Presentation time of the key frame from which on frames are decoded; None if none are skipped."""

    def take(self, packet: av.Packet[Any]) -> Taken:
        """Take the next packet of any stream."""
        if not self._can_skip:
            return Taken(ready=[packet])
        self._scout.see(packet)
        is_end = not packet.size and packet.dts is None
        is_ours = packet.stream_index == self._number
        is_empty = is_ours and packet.size < self._least_bytes
        if is_end or is_empty or not self._scout.is_clean or packet.has_sidedata("new_extradata"):
            return Taken(ready=[*self._held, packet])
        taken = Taken()
        if is_ours and packet.is_keyframe and not packet.is_discard and not self._is_beyond_start(packet):
            if len(self._keys) > 1:
                taken = self._drop_oldest()
            self._keys.append(len(self._held))
        self._held.append(packet)
        self._bytes += packet.size
        is_full = len(self._held) > _MOST_HELD or self._bytes > _MOST_HELD_BYTES
        is_done = is_full or not self._can_skip
        if is_ours:
            self._frames += not packet.is_discard
            is_done |= packet.pts is None or not self._keys or self._is_beyond_start(packet)
        return replace(taken, ready=self._held) if is_done else taken

    def _is_beyond_start(self, packet: av.Packet[Any]) -> bool:
        """Whether a packet, the next one of the video, may be shown after the first frame asked for."""
        if self._selection.start_s is None or packet.pts is None:
            return self._frames > self._selection.start
        return not (packet.pts - self._first_pts) * self._tick_s <= self._selection.start_s

    def _drop_oldest(self) -> Taken:
        """Drop the packets before the last key frame, and all frames shown before it."""
        at = self._keys[-1]
        cut = self._held[at].pts
        assert cut is not None
        oldest, newest = sorted(self._times(self._held[:at])), self._times(self._held[at:])
        since = 0 if self.cut is None else bisect_left(oldest, self.cut)
        skipped = sorted(oldest[since:] + [pts for pts in newest if pts < cut])
        begins_whole = self.cut is not None or skipped[0] == self._held[self._keys[0]].pts
        times = [*(() if self._last is None else (self._last,)), *skipped, cut]
        steps = [after - before for before, after in pairwise(times)]
        is_regular = min(steps) >= self._step * _SHORTEST_STEP
        if not self._scout.lists_packets:  # a decoder might tell that frames are missing in a gap
            is_regular &= max(steps) <= self._step * _LONGEST_STEP
        if oldest[-1] >= cut or not begins_whole or not is_regular:
            self._can_skip = False
            return Taken()
        dropped = self._held[:at]
        self._bytes -= sum(packet.size for packet in dropped)
        self._held = self._held[at:]
        self._keys, self._last, self.cut = [0], skipped[-1], cut
        return Taken(dropped, skipped)

    def _times(self, packets: Sequence[av.Packet[Any]]) -> list[int]:
        """Presentation times of the video's packets."""
        return [
            packet.pts
            for packet in packets
            if packet.stream_index == self._number and packet.pts is not None and not packet.is_discard
        ]
