"""Starting late in a video: packets that need no decoding.

Decoding can begin at a key frame, but frames shown before it may refer to earlier ones (open groups of pictures). So it
begins at the second last key frame before the first frame asked for: the frames are those that decoding from the
beginning gives, bit for bit. Packets before it are read and counted, which finds missing frames as always, but not
decoded. Some encoders mark frames as key frames from which the picture is refreshed bit by bit; after those decoding
begins at the beginning.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Any

import av
from av.video.frame import PictureType, VideoFrame

from maskjet.errors import SourceError
from maskjet.media.selection import Selection

_CODECS = {"h264", "hevc", "av1", "vp9", "mpeg4", "mpeg2video", "mjpeg", "prores"}  # a packet is a shown frame
_MOST_HELD, _MOST_HELD_BYTES = 5000, 1 << 28  # packets; a video may have no second key frame
_SHORTEST_STEP = 0.75  # of the stated frame interval; closer packets may be fields, or frames that are never shown


class CannotSkipError(SourceError):
    """Decoding can't begin at the key frame chosen; all frames before it must be decoded."""


def check_is_whole(picture: VideoFrame, cut: int) -> None:
    """Check the first picture decoded: that of the key frame, which refers to no other.

    Args:
        picture: The first picture not shown before `cut`.
        cut: Presentation time of the key frame.

    Raises:
        CannotSkipError: It is another picture, or refers to others.
    """
    if picture.pts != cut or picture.pict_type != PictureType.I or picture.is_corrupt:
        raise CannotSkipError("start must be found by decoding all frames before it.")


class PacketSkipper:
    """Holds a video's packets back until it is known from which key frame on they must be decoded.

    Args:
        stream: The video stream; nothing of it is decoded yet.
        selection: Frames asked for.
    """

    def __init__(self, stream: av.VideoStream, selection: Selection) -> None:
        rate, tick = stream.average_rate, stream.time_base
        self._step = float(1 / (rate * tick)) if rate and tick else 0.0
        self._selection = selection
        self._tick_s = float(tick or 0)
        self._first_pts = stream.start_time or 0
        self._can_skip = stream.codec.canonical_name in _CODECS and self._step > 0
        self._held: list[av.Packet[Any]] = []
        self._keys: list[int] = []  # positions of key frames in `_held`
        self._bytes = 0
        self._frames = 0  # packets so far
        self._last: int | None = None  # presentation time of the last frame skipped
        self.cut: int | None = None
        """Presentation time of the key frame from which on frames are decoded; None if none are skipped."""

    def take(self, packet: av.Packet[Any], *, is_clean: bool) -> tuple[list[int], list[av.Packet[Any]]]:
        """Take the next packet of the video.

        Args:
            packet: The packet.
            is_clean: Whether no packet so far is damaged, and none seems to be missing.

        Returns:
            Presentation times of frames that are skipped from now on, in order; and packets to decode. Once there is
            one, all further packets are to be decoded.
        """
        is_end = not packet.size or packet.pts is None
        if is_end or not (self._can_skip and is_clean) or packet.has_sidedata("new_extradata"):
            return [], [*self._held, packet]
        assert packet.pts is not None
        skipped: list[int] = []
        if packet.is_keyframe and not packet.is_discard and not self._is_beyond_start(packet.pts):
            if len(self._keys) > 1:
                skipped = self._drop_oldest()
            self._keys.append(len(self._held))
        self._held.append(packet)
        self._bytes += packet.size
        self._frames += not packet.is_discard
        is_full = len(self._held) > _MOST_HELD or self._bytes > _MOST_HELD_BYTES
        is_done = not self._can_skip or not self._keys or is_full or self._is_beyond_start(packet.pts)
        return skipped, self._held if is_done else []

    def _is_beyond_start(self, pts: int) -> bool:
        """Whether a packet with this time, the next one, may be shown after the first frame asked for."""
        if self._selection.start_s is None:
            return self._frames > self._selection.start
        return not (pts - self._first_pts) * self._tick_s <= self._selection.start_s

    def _drop_oldest(self) -> list[int]:
        """Drop the packets before the last key frame; returns the times of all frames shown before it."""
        at = self._keys[-1]
        cut = self._held[at].pts
        assert cut is not None
        oldest = sorted(packet.pts for packet in self._held[:at] if packet.pts is not None and not packet.is_discard)
        leading = [
            packet.pts
            for packet in self._held[at:]
            if packet.pts is not None and packet.pts < cut and not packet.is_discard
        ]
        since = 0 if self.cut is None else bisect_left(oldest, self.cut)
        skipped = sorted(oldest[since:] + leading)
        begins_whole = self.cut is not None or skipped[0] == self._held[0].pts
        times = [*(() if self._last is None else (self._last,)), *skipped, cut]
        steps = [after - before for before, after in pairwise(times)]
        if oldest[-1] >= cut or not begins_whole or min(steps) < self._step * _SHORTEST_STEP:
            self._can_skip = False
            return []
        self._bytes -= sum(packet.size for packet in self._held[:at])
        del self._held[:at]
        self._keys, self._last, self.cut = [0], skipped[-1], cut
        return skipped
