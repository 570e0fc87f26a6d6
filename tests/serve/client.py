"""An application of the demo model, and a client within the process of a test."""

import asyncio
import functools
import inspect
import struct
import zlib
from contextlib import asynccontextmanager

import cv2
import httpx

from maskjet.serve import Settings, create_app


def encoded(image, suffix=".png", options=()):
    """An RGB image as the bytes of a file."""
    return cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR), list(options))[1].tobytes()


def problem_of(answer):
    """Status and detail of a problem."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["type"].startswith("urn:maskjet:problem:")
    assert problem["title"]
    return answer.status_code, problem["detail"]


@asynccontextmanager
async def served(models, **settings):
    """A client of a service that has started."""
    app = create_app(models, Settings(**settings))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.service = app.state.service
            yield client


def run(test):
    """Run a test's coroutine function in an event loop, for a minute at most."""

    @functools.wraps(test)
    def wrapped(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 60))

    wrapped.__signature__ = inspect.signature(test)
    return wrapped


def bomb(width, height):
    """A PNG of this many black pixels, in few bytes."""
    row = zlib.compressobj(9)
    data = b"".join(row.compress(b"\0" * ((width + 7) // 8 + 1)) for _ in range(min(height, 4000))) + row.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
