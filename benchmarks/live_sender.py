"""Send a video to many clients in real time, over RTSP or HTTP, as cameras do, and note when each frame was sent.

    python -m benchmarks.live_sender live.flv stamps.bin --capacity 9000 --fps 30 --troubled-from 64

Prints the port, then sends stream number N to who plays rtsp://127.0.0.1:PORT/N, as RTP in TCP, or gets
http://127.0.0.1:PORT/N, as FLV. Each connection begins with the first frame. The file of stamps has 8 bytes per frame:
stream N's frame I was sent at the value number N × --capacity + I, by the system's monotonic clock, which all
processes share. Streams from --troubled-from on have no stamps: they fall silent, come back broken, and can't be
reached. This module imports nothing but the standard library, to start at once.
"""

from __future__ import annotations

import argparse
import base64
import mmap
import random
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import BinaryIO

_FILE_HEADER = 13  # bytes, with the length of no tag
_TAG_HEADER, _TAG_END = 11, 4  # bytes
_VIDEO = 9
_SOUND = bytes.fromhex("08 000003 000000 00 000000 3e 0000 0000000e")
"""A tag with one sample of silence: FFmpeg knows all streams and does not search for others for five seconds."""
_CONFIGURATION = _TAG_HEADER + 5  # in its tag: avcC, ISO/IEC 14496-15 5.3.3.1
_RTP_PAYLOAD = 1400  # bytes, as fit into a packet of Ethernet
_RTP_HZ = 90_000
_PLAYED_S, _SILENT_S, _BROKEN_S = 15.0, 20.0, 10.0  # of a stream in trouble
_BROKEN_SHARE = 0.3  # of its frames
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: video/x-flv\r\nConnection: close\r\n\r\n"  # no length: it has no end


def tags_of(data: bytes) -> Iterator[bytes]:
    """The tags of an FLV file."""
    at = _FILE_HEADER
    while at < len(data):
        end = at + _TAG_HEADER + int.from_bytes(data[at + 1 : at + 4], "big") + _TAG_END
        yield data[at:end]
        at = end


def split(data: bytes) -> tuple[bytes, list[bytes]]:
    """Split an FLV file of H.264 into what a decoder must know first, and a tag per frame."""
    beginning, frames = data[:4] + b"\x05" + data[5:_FILE_HEADER] + _SOUND, []
    for tag in tags_of(data):
        is_packet = tag[0] == _VIDEO and tag[_TAG_HEADER + 1] == 1
        is_end = tag[0] == _VIDEO and tag[_TAG_HEADER + 1] == 2
        if is_packet:
            frames.append(tag)
        elif not is_end:
            beginning += tag
    return beginning, frames


def at_time(tag: bytes, time_ms: int) -> bytes:
    """A tag with another time."""
    return tag[:4] + (time_ms & 0xFFFFFF).to_bytes(3, "big") + bytes([time_ms >> 24 & 0x7F]) + tag[8:]


def units_of(data: bytes) -> list[bytes]:
    """The NAL units of an access unit, each after its length of four bytes."""
    units, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        units.append(data[at + 4 : end])
        at = end
    return units


def parameters_of(beginning: bytes) -> list[bytes]:
    """The sequence and picture parameter set that an FLV file begins with."""
    tag = next(tag for tag in tags_of(beginning) if tag[0] == _VIDEO)
    begin = _CONFIGURATION + 8  # of the one sequence parameter set that x264 writes, after its length
    end = begin + int.from_bytes(tag[begin - 2 : begin], "big")
    size = int.from_bytes(tag[end + 1 : end + 3], "big")
    return [tag[begin:end], tag[end + 3 : end + 3 + size]]


def payloads_of(unit: bytes) -> list[bytes]:
    """The RTP payloads of a NAL unit: itself, or fragments of kind FU-A (RFC 6184 5.8)."""
    if len(unit) <= _RTP_PAYLOAD:
        return [unit]
    starts = range(1, len(unit), _RTP_PAYLOAD)
    first = bytes([unit[0] & 0xE0 | 28])
    return [
        first
        + bytes([unit[0] & 0x1F | (at == starts[0]) << 7 | (at == starts[-1]) << 6])
        + unit[at : at + _RTP_PAYLOAD]
        for at in starts
    ]


class Sender:
    """Serves a video to clients, each in a thread of its own.

    Args:
        video: FLV file without B frames.
        stamps: Where the times are written; at least `capacity` × 8 bytes for each stream without trouble.
        capacity: Most frames of a stream.
        fps: Frames per second.
        troubled_from: Number of the first stream in trouble.
    """

    def __init__(self, video: Path, stamps: mmap.mmap, capacity: int, fps: float, troubled_from: int) -> None:
        self._beginning, self._tags = split(video.read_bytes())
        self._packets = [
            [part for unit in units_of(tag[_CONFIGURATION:-_TAG_END]) for part in payloads_of(unit)]
            for tag in self._tags
        ]
        self._stamps, self._capacity, self._fps, self._troubled_from = stamps, capacity, fps, troubled_from
        self._connections: Counter[int] = Counter()  # so far, by stream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Answer clients until the process ends."""
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests, suppress(OSError):  # the client is gone
            begins = requests.readline()
            asked = re.match(rb"([A-Z]+) (?:rtsp://[^/ ]+)?/(\d+)", begins)
            if asked is None:
                return
            stream = int(asked[2])
            if asked[1] == b"GET":
                while requests.readline().strip():
                    pass
                connection.sendall(_ANSWER + self._beginning)
                frames = self._flv()
            else:
                self._agree(connection, begins, requests)
                frames = self._rtp()
            self._play(connection, stream, frames)

    def _agree(self, connection: socket.socket, line: bytes, requests: BinaryIO) -> None:
        """Answer the requests of RTSP (RFC 2326) up to the one that plays."""
        described = ",".join(base64.b64encode(each).decode() for each in parameters_of(self._beginning))
        media = (
            "v=0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n"
            f"a=fmtp:96 packetization-mode=1;sprop-parameter-sets={described}\r\na=control:track0\r\n"
        )
        while line.strip():
            method, fields = line.split()[0], b"".join(iter(requests.readline, b"\r\n"))
            number = re.search(rb"CSeq: *(\d+)", fields, re.IGNORECASE)
            head, body = "Session: 1\r\nPublic: DESCRIBE, SETUP, PLAY\r\n", ""
            if method == b"DESCRIBE":
                head, body = f"Content-Type: application/sdp\r\nContent-Length: {len(media)}\r\n", media
            elif method == b"SETUP":
                head = "Session: 1\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n"
            count = number[1].decode() if number else "0"
            connection.sendall(f"RTSP/1.0 200 OK\r\nCSeq: {count}\r\n{head}\r\n{body}".encode())
            if method == b"PLAY":
                return
            line = requests.readline()
        raise ConnectionError("the client is gone.")

    def _flv(self) -> Iterator[bytes]:
        """What is sent of each frame."""
        for index, tag in zip(range(self._capacity), cycle(self._tags), strict=False):
            yield at_time(tag, round(1000 * index / self._fps))

    def _rtp(self) -> Iterator[bytes]:
        """The same as packets of RTP (RFC 3550), interleaved in TCP."""
        sequence = 0
        for index, parts in zip(range(self._capacity), cycle(self._packets), strict=False):
            packets = []
            time_hz = round(_RTP_HZ * (1 + index / self._fps)) & 0xFFFFFFFF
            for number, part in enumerate(parts):
                kind = 96 | (number == len(parts) - 1) << 7
                packets.append(
                    struct.pack(">cBHBBHII", b"$", 0, 12 + len(part), 0x80, kind, sequence & 0xFFFF, time_hz, 1)
                )
                packets.append(part)
                sequence += 1
            yield b"".join(packets)

    def _play(self, connection: socket.socket, stream: int, frames: Iterator[bytes]) -> None:
        is_troubled = stream >= self._troubled_from
        turn = self._connections[stream] % 4 if is_troubled else 0
        self._connections[stream] += 1
        if turn == 2:  # can't be reached
            return
        begin, chance = time.monotonic(), random.Random(stream)
        for index, data in enumerate(frames):
            time.sleep(max(begin + index / self._fps - time.monotonic(), 0))
            if is_troubled and index > self._fps * (_BROKEN_S if turn == 1 else _PLAYED_S):
                time.sleep(_SILENT_S if turn == 0 else 0)
                return
            if turn == 1 and chance.random() < _BROKEN_SHARE:
                data = data[: len(data) // 2] + chance.randbytes(len(data) - len(data) // 2)
            if not is_troubled:
                struct.pack_into("d", self._stamps, 8 * (stream * self._capacity + index), time.monotonic())
            connection.sendall(data)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="Send a video to many clients in real time.")
    parser.add_argument("video", type=Path)
    parser.add_argument("stamps", type=Path)
    parser.add_argument("--capacity", type=int, required=True)
    parser.add_argument("--fps", type=float, default=30.0)
    parser.add_argument("--troubled-from", type=int, default=sys.maxsize)
    given = parser.parse_args()
    with given.stamps.open("r+b") as file, mmap.mmap(file.fileno(), 0) as stamps:
        sender = Sender(given.video, stamps, given.capacity, given.fps, given.troubled_from)
        sys.stdout.write(f"{sender.port}\n")
        sys.stdout.flush()
        sender.serve()


if __name__ == "__main__":
    main()
