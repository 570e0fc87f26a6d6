"""Copy the audio of a source into annotated video, without re-encoding."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import av
import av.error
from av.bitstream import BitStreamFilterContext
from av.stream import Discard

from maskjet.errors import MaskjetError, explain
from maskjet.host.printing import printable
from maskjet.sources.containers import is_stream, open_container
from maskjet.sources.frames import Source

_log = logging.getLogger("maskjet")
_ABOUT_AUDIO = (av.error.ArgumentError, av.error.InvalidDataError, av.error.PermissionError)
"""Errors that concern an audio packet, not the output file."""
_REHEARSED = 2000  # most packets to read in search of the first audio packet
_EARLIER_S = 1.0  # reading begins this much before the first frame, as seeking is inexact
_PATIENCE = {"max_interleave_delta": "1000000"}  # µs; longest wait of video packets for audio


class AudioTrack:
    """An audio stream of a source's file, opened again; its packets are interleaved with frames by time.

    Those before the first frame and after the last are left out. Damage ends the audio with a warning.
    """

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: av.AudioStream,
        path: str,
        start_s: float,
        options: Mapping[str, str],
    ) -> None:
        self._container, self._stream, self._path, self.options = container, stream, path, options
        self._tick_s = float(stream.time_base or 1)
        self._start = round(start_s / self._tick_s)
        self._packets = _packets(container, stream, start_s)
        self._next: av.Packet[Any] | None = None
        self._last: int | None = None  # decoding time of the last packet written
        self._out: av.AudioStream | None = None
        self._unframe = _unframing(stream)

    def add_to(self, container: av.container.OutputContainer) -> None:
        """Add the stream to an output before anything is written; does nothing if the audio has ended."""
        self._next = self._read()
        if self._next is not None:
            self._out = _add_stream(container, self._stream, self._next)

    def mux_until(self, container: av.container.OutputContainer, seconds: float) -> None:
        """Write the packets that begin before a time of the output, in seconds; audio that it refuses ends."""
        while self._out is not None:
            if self._next is None:
                self._next = self._read()
            if self._next is None or self._next.pts is None or self._next.pts * self._tick_s >= seconds:
                return
            packet, self._next = self._next, None
            packet.stream, self._last = self._out, packet.dts
            try:
                container.mux_one(packet)
            except _ABOUT_AUDIO as error:
                self._end(explain(error))

    def _read(self) -> av.Packet[Any] | None:
        """Read the next writable packet, with times of the output; None at the end."""
        try:
            for packet in self._packets:
                if not packet.size or packet.pts is None or packet.is_corrupt or packet.pts < self._start:
                    continue
                dts = packet.pts if packet.dts is None else packet.dts
                if self._last is not None and dts - self._start <= self._last:  # times went back
                    continue
                packet.pts, packet.dts = packet.pts - self._start, dts - self._start
                return self._unframe(packet)
        except (av.error.FFmpegError, ValueError) as error:
            self._end(explain(error))
        self.close()
        return None

    def _end(self, why: str) -> None:
        _warn(self._path, f"ends early: {why}")
        self.close()

    def close(self) -> None:
        """End the audio; may be called twice."""
        self._out = None
        self._container.close()


def open_audio(
    source: Source | None, path: str, container_format: str, start_s: float | None, options: Mapping[str, str]
) -> list[AudioTrack]:
    """Open a video file's audio tracks for an output that begins at a time; warns about what can't be copied."""
    if source is None or source.kind != "video" or source.is_live or is_stream(source.name) or start_s is None:
        return []
    tracks, count = list[AudioTrack](), 0
    with _leaving_out(path), open_container(source.name) as container:
        count = len(container.streams.audio)
    options = {**options, **_PATIENCE}
    for number in range(count):
        with _leaving_out(path, f"track {number} " if count > 1 else ""):
            _check_is_taken(source.name, number, container_format, options)
            container = open_container(source.name)
            tracks.append(AudioTrack(container, container.streams.audio[number], path, start_s, options))
    return tracks


@contextmanager
def _leaving_out(path: str, track: str = "") -> Iterator[None]:
    """Turn errors into a warning that a track is left out."""
    try:
        yield
    except (MaskjetError, av.error.FFmpegError, ValueError, OSError) as error:
        _warn(path, f"{track}is left out: {explain(error)}")


def _check_is_taken(name: str, number: int, container_format: str, options: dict[str, str]) -> None:
    """Raise ValueError or FFmpegError if a container format rejects an audio track; tested in memory."""
    with (
        open_container(name) as container,
        av.open(io.BytesIO(), "w", format=container_format, options=options) as trial,
    ):
        stream = container.streams.audio[number]
        codec = stream.codec_context.codec.canonical_name if stream.codec_context else "unknown codec"
        if codec not in trial.supported_codecs:
            raise ValueError(f"{container_format} takes no {codec}, .mkv does")
        for packet in islice(container.demux(), _REHEARSED):
            if packet.stream_index == stream.index and packet.size and packet.pts is not None:
                unframed = _unframing(stream)(packet)
                unframed.stream = _add_stream(trial, stream, unframed)
                trial.mux_one(unframed)
                return


def _unframing(stream: av.AudioStream) -> Callable[[av.Packet[Any]], av.Packet[Any]]:
    """Return a packet filter: converts AAC with ADTS headers, of transport streams, to raw AAC."""
    context: av.AudioCodecContext | None = stream.codec_context
    if context is None or context.codec.canonical_name != "aac" or context.extradata:
        return lambda packet: packet
    moved = BitStreamFilterContext("aac_adtstoasc", stream)

    def unframe(packet: av.Packet[Any]) -> av.Packet[Any]:
        (result,) = moved.filter(packet)
        return result

    return unframe


def _add_stream(
    container: av.container.OutputContainer, stream: av.AudioStream, first: av.Packet[Any]
) -> av.AudioStream:
    """Add a copy of a stream to a container, with its language, title, and codec header of its first packet."""
    out = container.add_stream_from_template(stream)
    out.metadata.update((name, text) for name, text in stream.metadata.items() if name in ("language", "title"))
    out.disposition = stream.disposition
    if first.has_sidedata("new_extradata"):
        out.codec_context.extradata = bytes(first.get_sidedata("new_extradata"))
    return out


def _packets(
    container: av.container.InputContainer, stream: av.AudioStream, start_s: float
) -> Iterator[av.Packet[Any]]:
    """Yield audio packets from shortly before a time on, or from the start if seeking fails."""
    for other in container.streams:
        if other.index != stream.index:
            other.discard = Discard.all
    if start_s > _EARLIER_S:
        with suppress(av.error.FFmpegError):
            container.seek(round((start_s - _EARLIER_S) / float(stream.time_base or 1)), stream=stream)
    yield from container.demux(stream)


def _warn(path: str, message: str) -> None:
    _log.warning("audio of %s %s", printable(repr(path)), printable(message))
