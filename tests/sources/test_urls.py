"""Videos of web servers: those that ask for passwords, drip or break off, and those that name other files."""

import re
import threading
from base64 import b64encode
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from maskjet.errors import SourceError
from maskjet.sources import containers
from maskjet.sources.frames import open_source
from tests.sources.clips import FASTSTART, SOUND_RATE, read, write_video

pytestmark = pytest.mark.usefixtures("in_folder")


class Answers(BaseHTTPRequestHandler):
    """Answers with the server's `answer(handler)`; bytes are sent as a file, in parts if it `gives_parts`."""

    def do_GET(self):
        self.server.asked.append((self.path, dict(self.headers)))
        answer = self.server.answer
        data = answer(self) if callable(answer) else answer
        if data is None:
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(asked[1]) if asked and self.server.gives_parts else 0
        self.send_response(206 if self.server.gives_parts else 200)
        if self.server.gives_parts:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        self.wfile.write(data[first : first + self.server.most])

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def serving(answer, *, gives_parts=True, most=2**30):
    """A server on loopback and its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.answer, server.gives_parts, server.most, server.asked = answer, gives_parts, most, []
        server.handle_error = lambda *_: None  # clients that hang up
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_port}/v"
        finally:
            server.shutdown()
            thread.join()


def redirecting(to):
    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", to(handler))
        handler.end_headers()

    return answer


def frames_of(url):
    with open_source(url, reconnect_for=0) as source:
        return list(source)


@pytest.mark.parametrize("gives_parts", [True, False])
def test_a_video_is_that_of_the_file(gives_parts):
    options = {} if gives_parts else FASTSTART  # an index at the end needs parts
    path = write_video(Path("v.mp4"), frames=30, sound=np.zeros(SOUND_RATE), container_options=options)
    with serving(path.read_bytes(), gives_parts=gives_parts) as (_, url):
        found = frames_of(url)
    expected = read(path)[1]
    assert len(found) == len(expected) == 30
    for frame, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(frame.image, other.image)


@pytest.mark.parametrize("scheme", ["Basic", "Digest"])
def test_a_server_that_asks_for_a_password(scheme):
    data = write_video(Path("v.mp4"), frames=3).read_bytes()

    def answer(handler):
        given = handler.headers.get("Authorization", "")
        if given == f"Basic {b64encode(b'me:h@nter/2').decode()}" or given.startswith('Digest username="me"'):
            return data
        handler.send_response(401)
        handler.send_header("WWW-Authenticate", f'{scheme} realm="gate", nonce="1", qop="auth"')
        handler.end_headers()
        return None

    with serving(answer) as (_, url):
        assert len(frames_of(url.replace("//", "//me:h%40nter%2F2@"))) == 3
        with pytest.raises(SourceError, match="401"):
            frames_of(url)


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n"


ATTACKS = [
    lambda _: redirecting(lambda _: "file:///etc/hostname"),
    lambda port: PLAYLIST.format(f"http://127.0.0.1:{port}/secret.ts").encode(),
    lambda port: f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video {port} RTP/AVP 26\n".encode(),
    lambda port: f"ffconcat version 1.0\nfile http://127.0.0.1:{port}/secret\n".encode(),
]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", ["", ".m3u8"])
def test_what_no_server_may_name_to_anyone(attack, name):
    with serving(b"secret") as (other, _), serving(attack(other.server_port)) as (server, url):
        with pytest.raises(SourceError, match="can't be read"):
            open_source(url + name)
        assert (len(server.asked), other.asked) == (1, [])


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 302 Found\r\nLocation: /v\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_server_that_drips_is_left(head, monkeypatch):
    monkeypatch.setattr(containers, "_OPEN_TIMEOUT_S", 0.3)
    is_over = threading.Event()

    def answer(handler):
        handler.wfile.write(head)
        while not is_over.wait(0.02):
            handler.wfile.write(b"X-a" if not head else b"a")
        return

    with serving(answer) as (_, url):
        try:
            with pytest.raises(SourceError, match="can't be read"):
                frames_of(url)
        finally:
            is_over.set()


def test_a_connection_that_breaks_off():
    path = write_video(Path("v.mp4"), frames=60, container_options=FASTSTART)
    data = path.read_bytes()
    with (
        serving(data, gives_parts=False, most=len(data) * 3 // 4) as (_, url),
        open_source(url, reconnect_for=0) as source,
    ):
        frames = list(source)
    assert 20 < len(frames) < 60
    assert source.bad_frames
