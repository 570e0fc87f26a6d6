"""A camera on loopback: an RTSP server that can be killed, come back as another one, and fall silent."""

import itertools
import re
import socket
import struct
import threading
from contextlib import suppress
from fractions import Fraction

import av
import numpy as np

PICTURES = 10  # in a loop, each of its own brightness
_NAMES = {"libx264": "H264", "mpeg4": "MP4V-ES"}


class RtspCamera:
    """Serves pictures over RTSP, interleaved in TCP; a context manager. The port stays the same for all its servers.

    Attributes:
        url: Where it is.
        plays: Number of times that a client has begun to play.
        is_silent: Whether it sends no video; its sound goes on.
    """

    def __init__(self, *, fps=50, **kind):
        self.fps, self.plays, self.is_silent = fps, 0, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.url = f"rtsp://127.0.0.1:{self._port}/live"
        self._start(**kind)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        """End the server and all its connections."""
        self._killed.set()
        with suppress(OSError):  # it is killed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(20)
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in (self._accepting, *self._serving):
            thread.join(20)
            assert not thread.is_alive()

    def come_back(self, **kind):
        """Start another server, after `kill`."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._start(**kind)

    def _start(self, size_hw=(64, 96), codec="libx264", *, has_sound=False):
        self._codec, self._has_sound, self.is_silent = codec, has_sound, False
        self._pictures = list(_encode(codec, size_hw, self.fps))
        self._killed, self._connections, self._serving = threading.Event(), [], []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self):
        with suppress(OSError):  # it is killed
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._serving.append(threading.Thread(target=self._serve, args=(connection,)))
                self._serving[-1].start()

    def _serve(self, connection):
        with connection, connection.makefile("rb") as requests, suppress(OSError):
            while (line := requests.readline()).strip():
                number = re.search(rb"CSeq: *(\d+)", b"".join(iter(requests.readline, b"\r\n")), re.IGNORECASE)[1]
                method, _, rest = line.decode().partition(" ")
                fields, body = self._answer(method, rest)
                connection.sendall(f"{self._status(method)}\r\nCSeq: {number.decode()}\r\n{fields}\r\n{body}".encode())
                if method == "PLAY":
                    self.plays += 1
                    self._play(connection)
                    return

    @staticmethod
    def _status(_):
        return "RTSP/1.0 200 OK"

    def _answer(self, method, rest):
        if method == "DESCRIBE":
            body = f"v=0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 {_NAMES[self._codec]}/90000\r\na=control:track0\r\n"
            if self._has_sound:
                body += "m=audio 0 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\na=control:track1\r\n"
            return (
                f"Content-Base: {self.url}/\r\nContent-Type: application/sdp\r\nContent-Length: {len(body)}\r\n",
                body,
            )
        if method == "SETUP":
            channels = "2-3" if "track1" in rest else "0-1"
            return f"Session: 1\r\nTransport: RTP/AVP/TCP;unicast;interleaved={channels}\r\n", ""
        return "Session: 1\r\nPublic: DESCRIBE, SETUP, PLAY\r\n", ""

    def _play(self, connection):
        sequence = itertools.count()
        for number in itertools.count():
            if self._killed.wait(1 / self.fps):
                return
            parts = [] if self.is_silent else self._pictures[number % PICTURES]
            for part in parts:
                kind = 96 | (part is parts[-1]) << 7
                self._send(connection, 0, kind, next(sequence), 90_000 * (number + self.fps) // self.fps, part)
            if self._has_sound:
                self._send(connection, 2, 0, number, 8000 * number // self.fps, bytes(8000 // self.fps))

    @staticmethod
    def _send(connection, channel, kind, sequence, time, data):
        """Send an RTP packet."""
        header = struct.pack(">BBHII", 0x80, kind, sequence & 0xFFFF, time & 0xFFFFFFFF, 1 + channel)
        connection.sendall(b"$" + struct.pack(">BH", channel, len(header + data)) + header + data)


def _encode(codec, size_hw, fps):
    """The pictures, each as the payloads of its RTP packets."""
    context = av.CodecContext.create(codec, "w")
    context.height, context.width = size_hw
    context.pix_fmt, context.time_base, context.gop_size = "yuv420p", Fraction(1, fps), 1
    context.options = {"tune": "zerolatency", "preset": "ultrafast"} if codec == "libx264" else {}
    pictures = [np.full((*size_hw, 3), 20 * number, np.uint8) for number in range(PICTURES)]
    frames = [av.VideoFrame.from_ndarray(picture, format="rgb24") for picture in pictures]
    for number, frame in enumerate([*frames, None]):
        if frame is not None:
            frame.pts = number
        for packet in context.encode(frame):
            units = re.split(b"\0{2,3}\1", bytes(packet))[1:]
            yield units if codec == "libx264" else [bytes(packet)]
