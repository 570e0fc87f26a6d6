"""What bad clients of `benchmarks.serve_soak` send.

Each function returns a request, and whether its client waits for an answer.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence

import cv2
import numpy as np

_HEAD = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"


def _half(rng: random.Random, images: Sequence[bytes]) -> tuple[bytes, bool]:
    request = _post(rng.choice(images))
    return request[: rng.randrange(1, len(request))], False


def _unread(rng: random.Random, images: Sequence[bytes]) -> tuple[bytes, bool]:
    return _post(rng.choice(images)), False


def _noise(rng: random.Random, _: Sequence[bytes]) -> tuple[bytes, bool]:
    return _post(rng.randbytes(rng.randrange(1, 50_000))), True


def _damaged(rng: random.Random, images: Sequence[bytes]) -> tuple[bytes, bool]:
    data = bytearray(rng.choice(images))
    for _ in range(20):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return _post(bytes(data[: rng.randrange(len(data) // 2, len(data))])), True


def _no_http(rng: random.Random, _: Sequence[bytes]) -> tuple[bytes, bool]:
    return b"\x16\x03\x01" + rng.randbytes(200) + b"\r\n\r\n", True


def _bad_form(rng: random.Random, images: Sequence[bytes]) -> tuple[bytes, bool]:
    body = b'--a\r\nContent-Disposition: form-data; name="x"\r\n\r\n' + rng.choice(images)[:100]
    return _post(body, "multipart/form-data; boundary=a"), True


def _stall_in_headers(rng: random.Random, _: Sequence[bytes]) -> tuple[bytes, bool]:
    return _HEAD[: rng.randrange(10, len(_HEAD))].encode(), True


def _stall_in_body(rng: random.Random, images: Sequence[bytes]) -> tuple[bytes, bool]:
    request = _post(rng.choice(images))
    return request[: len(request) // 2], True


def _huge_body(*_: object) -> tuple[bytes, bool]:
    return f"{_HEAD}Content-Length: {10**12}\r\n\r\n".encode() + b"x" * 1000, True


def _huge_image(*_: object) -> tuple[bytes, bool]:
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 1, 0, 0, 0, 0)
    chunk = struct.pack(">I", len(header)) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return _post(b"\x89PNG\r\n\x1a\n" + chunk + b"\0" * 30_000), True


def _huge_wish(rng: random.Random, images: Sequence[bytes]) -> tuple[bytes, bool]:
    query = rng.choice(
        ("max_detections=999999999", "threshold=nan", "model=../../etc/passwd", f"classes={'a,' * 9000}")
    )
    return _post(rng.choice(images)).replace(b"/v1/predict", f"/v1/predict?{query}".encode(), 1), True


def _huge_headers(*_: object) -> tuple[bytes, bool]:
    return (_HEAD + "X: " + "y" * 100_000).encode(), True


_DEAR = (
    ("Cookie", 'a="' + '\\"' * 30_000 + '"'),
    ("Cookie", "a=b;" * 15_000),
    ("Accept", "," * 60_000),
    ("Content-Type", "a" + ";" * 60_000),
    ("Content-Type", "multipart/form-data; boundary=" + "a" * 60_000),
    ("Authorization", "Bearer " + " a" * 30_000),
    ("Content-Length", "9" * 60_000),
    ("Origin", "http://" + "[" * 60_000),
    ("Sec-WebSocket-Protocol", "bearer.," * 7000),
    ("Range", "bytes=" + "0-," * 20_000),
    ("X", "\r\nX: ".join("y" * 9000)),
)


def _dear_header(rng: random.Random, images: Sequence[bytes]) -> tuple[bytes, bool]:
    name, value = rng.choice(_DEAR)
    return _post(rng.choice(images)).replace(b"Content-Type", f"{name}: {value}\r\nContent-Type".encode(), 1), True


def _dear_path(rng: random.Random, images: Sequence[bytes]) -> tuple[bytes, bool]:
    query = rng.choice(("classes=" + "%41" * 20_000, "a&" * 30_000, "threshold=a=1&" * 4000, "model=" + "a" * 60_000))
    return _post(rng.choice(images)).replace(b"/v1/predict", f"/v1/predict?{query}".encode(), 1), True


def _dear_numbers(*_: object) -> tuple[bytes, bool]:
    data = ",".join(["9" * 4299] * 400)
    body = f'{{"inputs": [{{"name": "image", "datatype": "UINT8", "shape": [1, 1, 3], "data": [{data}]}}]}}'
    return _post(body.encode(), "application/json").replace(b"/v1/predict", b"/v2/models/demo/infer", 1), True


def _no_request(*_: object) -> tuple[bytes, bool]:
    return b"\r\n" * 10, True


def _many_at_once(*_: object) -> tuple[bytes, bool]:
    return b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000, True


def _endless_trailers(*_: object) -> tuple[bytes, bool]:
    return f"{_HEAD}Transfer-Encoding: chunked\r\n\r\n0\r\n".encode() + b"X: y\r\n" * 100_000, False


def _tiny_chunks(*_: object) -> tuple[bytes, bool]:
    return f"{_HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\nx\r\n" * 100_000, False


def _tiny_frames(rng: random.Random, _: Sequence[bytes]) -> tuple[bytes, bool]:
    handshake = (
        b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    return handshake + rng.choice((b"\x82\x81\0\0\0\0x", b"\x89\x80\0\0\0\0")) * 100_000, False


def _many_tiles(rng: random.Random, _: Sequence[bytes]) -> tuple[bytes, bool]:
    black = np.zeros((2048, 2048, 3), np.uint8)
    image = bytes(cv2.imencode(".png", black)[1])
    count = rng.randint(1, 4)
    body = b"".join(b'--a\r\nContent-Disposition: form-data; name="x"\r\n\r\n' + image + b"\r\n" for _ in range(count))
    request = _post(body + b"--a--\r\n", "multipart/form-data; boundary=a")
    return request.replace(b"/v1/predict", b"/v1/predict?tile=300&overlap=0.1", 1), True


def _post(body: bytes, kind: str = "image/jpeg") -> bytes:
    head = _HEAD.replace("image/jpeg", kind)
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


BAD: dict[str, Callable[[random.Random, Sequence[bytes]], tuple[bytes, bool]]] = {
    "breaks off in the request": _half,
    "breaks off before the answer": _unread,
    "noise for an image": _noise,
    "a damaged image": _damaged,
    "no HTTP": _no_http,
    "half a form": _bad_form,
    "stalls in the headers": _stall_in_headers,
    "stalls in the body": _stall_in_body,
    "a body of 10^12 bytes": _huge_body,
    "50,000 × 50,000 pixels": _huge_image,
    "wishes out of range": _huge_wish,
    "100 kB of headers": _huge_headers,
    "headers that are dear to parse": _dear_header,
    "queries that are dear to parse": _dear_path,
    "numbers that are dear to parse": _dear_numbers,
    "bytes that begin no request": _no_request,
    "a thousand requests at once": _many_at_once,
    "trailers without end": _endless_trailers,
    "chunks of one byte": _tiny_chunks,
    "WebSocket frames of one byte": _tiny_frames,
    "images of 64 tiles": _many_tiles,
}
"""Bad clients by name."""
