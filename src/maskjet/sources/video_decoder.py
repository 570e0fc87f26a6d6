"""Decode a video: its pictures in display order, with the losses between them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

import av
import av.error
from av.video.frame import PictureType

from maskjet.errors import SourceError
from maskjet.sources.containers import live_packets, open_container, reason, shown_name, video_of
from maskjet.sources.losses import Loss, Losses
from maskjet.sources.opened_video import OpenedVideo
from maskjet.sources.video_index import MOST_PASSED, SEEKABLE, Entry

_MOST_ARRIVALS = 64  # packets whose pictures have not come


class CannotEnterError(SourceError):
    """A video can't be decoded from a key frame entry, only from its beginning."""


class VideoDecoder:
    """Decodes a video from its beginning or a key frame, its entry, and accounts for every packet.

    The frames behind the entry, up to the index `exact_until`, must surely be those of the whole video; None if they
    need not.
    """

    def __init__(self, video: OpenedVideo, entry: Entry | None = None, *, exact_until: float | None = None) -> None:
        self._video, self._entry, self._exact_until = video, entry, exact_until
        self._losses = Losses(video.container, video.stream, entry, has_all_pictures=exact_until is not None)
        self.arrivals: dict[int | None, float] = {}
        """When the packets of a live source were handed out, by their presentation time in ticks."""
        self._has_decoder = False  # a GPU decoder is created with the first pictures

    def __iter__(self) -> Iterator[av.VideoFrame | Loss]:
        """Yield pictures that are whole, and losses, in display order.

        Raises:
            CannotEnterError: The entry does not hold, or there is a doubt up to `exact_until`: damage, a lost frame, a
                packet without a picture, times out of order, an early end.
            FFmpegError: A live source broke off.
        """
        return self._decode_all() if self._exact_until is None else self._decode_exactly(self._exact_until)

    def _decode_exactly(self, until: float) -> Iterator[av.VideoFrame | Loss]:
        """Yield all pictures, and raise at the first doubt that they are those of the whole video."""
        assert self._entry is not None
        index, last_pts = self._entry.index, -math.inf
        for decoded in self._decode_all():
            if isinstance(decoded, Loss):
                raise self._refusal("a packet gives no whole picture" if decoded.frames else decoded.reason)
            if decoded.pts is None or decoded.pts <= last_pts:
                raise self._refusal("times are missing or out of order")
            index, last_pts = index + 1, decoded.pts
            yield decoded
        if index < until < math.inf:
            raise self._refusal(f"the video ends at frame {index}")

    def _decode_all(self) -> Iterator[av.VideoFrame | Loss]:
        awaited = self._entry
        for picture in self._pictures():
            if isinstance(picture, Loss):
                yield picture
                continue
            self._losses.place(picture)
            if self._losses.is_given_up(picture):
                continue
            if awaited is not None:
                if picture.pts is not None and picture.pts < awaited.pts:
                    continue  # incomplete, as it refers to pictures before the entry
                # With gradual intra refresh, encoders mark pictures as key frames that are not I pictures.
                if picture.pts != awaited.pts or picture.pict_type != PictureType.I or picture.is_corrupt:
                    raise self._refusal("its picture is another, or refers to others")
                awaited = None
            yield from self._losses.before(picture)
            if not picture.is_corrupt:
                yield picture
        if awaited is not None:
            raise self._refusal("its picture does not come")
        yield from self._losses.before(None)

    def _refusal(self, cause: str) -> CannotEnterError:
        entry, name = self._entry, shown_name(self._video.url)
        assert entry is not None
        return CannotEnterError(
            f"entry must be the key frame {entry.index} of {name!r}, at {entry.pts} ticks, with whole frames up to the "
            f"part's end: {cause}. Open the part with entry=None."
        )

    def _pictures(self) -> Iterator[av.VideoFrame | Loss]:
        """Decode all packets, then the frames still due."""
        container, stream = self._video.container, self._video.stream
        packets = self._packets(container, stream)
        for packet in packets if self._entry is None else self._packets_from(self._entry, packets):
            self._losses.see(packet)
            if packet.stream is stream:
                yield from self._decode(packet)
        if self._losses.first_due is not None and not self._video.is_live:
            yield from self._decode_again(self._losses.first_due)

    def _packets(self, container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[av.Packet[Any]]:
        """Yield packets of all streams (live: of the video), then an empty one that drains the decoder."""
        if self._video.is_live:
            for packet in live_packets(container, stream):
                self.arrivals[packet.pts] = time.monotonic()
                if len(self.arrivals) > _MOST_ARRIVALS:
                    del self.arrivals[next(iter(self.arrivals))]
                yield packet
            return
        try:
            yield from container.demux()
        except av.error.FFmpegError as error:
            self._losses.fail(reason(error))
            drain: av.Packet[Any] = av.Packet()
            drain.stream = stream
            yield drain

    def _packets_from(self, entry: Entry, packets: Iterator[av.Packet[Any]]) -> Iterator[av.Packet[Any]]:
        """Yield packets from the entry's on; seeking may stop at an earlier key frame."""
        container, stream = self._video.container, self._video.stream
        is_sought = container.format.name in SEEKABLE
        if is_sought:
            try:
                container.seek(entry.pts, stream=stream)
            except (av.error.FFmpegError, OverflowError) as error:
                raise self._refusal("seeking to it fails") from error
        passed = 0
        for packet in packets:
            if packet.stream is not stream:
                continue
            if entry.is_of(packet) if is_sought else passed == entry.packets:
                yield from chain([packet], packets)
                return
            passed += 1
            if is_sought and passed == MOST_PASSED:
                break
        raise self._refusal("its packet is not found")

    def _decode(self, packet: av.Packet[Any]) -> Sequence[av.VideoFrame | Loss]:
        """The pictures the decoder returns after a packet; none if it finds damage."""
        try:
            with nullcontext() if self._has_decoder else self._video.decoding.alone():
                pictures = packet.decode()
        except av.error.FFmpegError as error:
            self._losses.fail(reason(error), packet)
            is_untimed = packet.size and packet.pts is None  # such a packet is not due
            return [Loss(reason(error), 1)] if is_untimed else []
        self._has_decoder |= bool(pictures)
        return pictures

    def _decode_again(self, first_due: int) -> Iterator[av.VideoFrame | Loss]:
        """Decode frames still due again without frame threads, which PyAV does not drain after damage."""
        with open_container(self._video.url) as container:
            stream = video_of(container)
            stream.thread_type = "SLICE"
            container.seek(first_due, stream=stream)
            for packet in self._packets(container, stream):
                if packet.stream is not stream:
                    continue
                for picture in self._decode(packet):
                    due = self._losses.first_due
                    if isinstance(picture, Loss) or (due is not None and (picture.pts or -1) >= due):
                        yield picture
