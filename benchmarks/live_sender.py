"""Send a video to many clients over HTTP in real time, for ever, as cameras do, and note when each frame was sent.

    python -m benchmarks.live_sender live.flv stamps.bin --capacity 9000 --fps 30

Prints the port, then answers GET /N for stream number N. Each connection begins with the first frame. The file of
stamps has 8 bytes per frame: stream N's frame I was sent at the value number N × --capacity + I, by the system's
monotonic clock, which all processes share. This module imports nothing but the standard library, to start at once.
"""

from __future__ import annotations

import argparse
import mmap
import re
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_FILE_HEADER = 13  # bytes, with the length of no tag
_TAG_HEADER, _TAG_END = 11, 4  # bytes
_VIDEO = 9
_SOUND = bytes.fromhex("08 000003 000000 00 000000 3e 0000 0000000e")
"""A tag with one sample of silence: FFmpeg knows all streams and does not search for others for five seconds."""
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: video/x-flv\r\nConnection: close\r\n\r\n"  # no length: it has no end


def split(data: bytes) -> tuple[bytes, list[bytes]]:
    """Split an FLV file of H.264 into what a decoder must know first, and a tag per frame."""
    beginning, frames, at = data[:4] + b"\x05" + data[5:_FILE_HEADER] + _SOUND, [], _FILE_HEADER
    while at < len(data):
        end = at + _TAG_HEADER + int.from_bytes(data[at + 1 : at + 4], "big") + _TAG_END
        tag = data[at:end]
        is_packet = tag[0] == _VIDEO and tag[_TAG_HEADER + 1] == 1
        is_end = tag[0] == _VIDEO and tag[_TAG_HEADER + 1] == 2
        if is_packet:
            frames.append(tag)
        elif not is_end:
            beginning += tag
        at = end
    return beginning, frames


def at_time(tag: bytes, time_ms: int) -> bytes:
    """A tag with another time."""
    return tag[:4] + (time_ms & 0xFFFFFF).to_bytes(3, "big") + bytes([time_ms >> 24 & 0x7F]) + tag[8:]


class Sender:
    """Serves a video to clients, each in a thread of its own.

    Args:
        video: FLV file without B frames.
        stamps: Where the times are written; at least `capacity` × 8 bytes for each stream.
        capacity: Most frames of a stream.
        fps: Frames per second.
    """

    def __init__(self, video: Path, stamps: mmap.mmap, capacity: int, fps: float) -> None:
        self._beginning, self._frames = split(video.read_bytes())
        self._stamps, self._capacity, self._fps = stamps, capacity, fps
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Answer clients until the process ends."""
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as request, suppress(OSError):  # the client is gone
            asked = re.match(rb"GET /(\d+) ", request.readline())
            if asked is None:
                return
            while request.readline().strip():
                pass
            connection.sendall(_ANSWER + self._beginning)
            self._play(connection, int(asked[1]))

    def _play(self, connection: socket.socket, stream: int) -> None:
        begin = time.monotonic()
        for index in range(self._capacity):
            tag = at_time(self._frames[index % len(self._frames)], round(1000 * index / self._fps))
            time.sleep(max(begin + index / self._fps - time.monotonic(), 0))
            struct.pack_into("d", self._stamps, 8 * (stream * self._capacity + index), time.monotonic())
            connection.sendall(tag)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="Send a video to many clients in real time.")
    parser.add_argument("video", type=Path)
    parser.add_argument("stamps", type=Path)
    parser.add_argument("--capacity", type=int, required=True)
    parser.add_argument("--fps", type=float, default=30.0)
    given = parser.parse_args()
    with given.stamps.open("r+b") as file, mmap.mmap(file.fileno(), 0) as stamps:
        sender = Sender(given.video, stamps, given.capacity, given.fps)
        sys.stdout.write(f"{sender.port}\n")
        sys.stdout.flush()
        sender.serve()


if __name__ == "__main__":
    main()
