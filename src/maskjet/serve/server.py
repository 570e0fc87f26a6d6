"""Run the application with uvicorn, with a bounded shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from maskjet.errors import DeviceError, UnsupportedError, explain
from maskjet.host import process
from maskjet.serve.connections import protocols
from maskjet.serve.service import Service
from maskjet.serve.settings import Settings

BACKLOG = 2048
"""Length of the listen backlog, in connections; uvicorn's default."""
GRACE_S = 0.25
"""Seconds after a signal during which connections are still accepted."""
_DEVICE_FAILED = 5  # exit code, as in `cli.main`
_KEEP_ALIVE_S = 15
_UNSENT_BYTES = 2**17  # limits stale frames for slow viewers; the default is up to 4 MiB
_log = logging.getLogger("maskjet.serve")


def listen(settings: Settings) -> socket.socket:
    """Bind the port before models are loaded; clients wait in the listen backlog.

    Raises:
        InputError: Other machines would reach it, and there is no token.
        SourceError: A file that is to be watched does not exist.
        UnsupportedError: It can't be bound.
    """
    settings.check_exposure()
    if settings.source:
        from maskjet.serve.source_names import check_files

        check_files(settings.source)
    host = settings.host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)[0]
        is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    except OSError as error:
        why = explain(error).partition(" (while")[0]  # drop the address that Python appends
        raise UnsupportedError(
            f"host and port must be free to listen on, {host}:{settings.port} can't be used: {why}."
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: FastAPI, listener: socket.socket, *, announce: Callable[[str], None]) -> None:
    """Serve until a signal, or until the device fails; then finish the requests in progress and close the listener.

    SIGTERM, SIGINT and SIGHUP end it within `Settings.drain_s`, and a second one at once, if this is the main thread.
    If a thread still decodes some seconds later, the process ends with it. `announce` is called with the URL once the
    service is ready.

    Raises:
        UnsupportedError: A model failed on its first frames.
        DeviceError: The device failed later.
    """
    service: Service = app.state.service
    with logging_on_stderr():
        server = Server(configure(app, service.settings), service, announce=lambda: announce(url_of(listener)))
        server.run(sockets=[listener])
        if service.has_hung:
            _log.warning("A thread has not ended in time; the process ends without it.")
            os._exit(0 if service.error is None else _DEVICE_FAILED)
    if service.error is not None and not service.is_warm:
        raise UnsupportedError(f"The service has ended: {service.failure}")
    if isinstance(service.error, DeviceError):
        raise service.error


def configure(app: ASGIApp, settings: Settings, *bases: type) -> uvicorn.Config:
    """Uvicorn configuration of an application; `bases` are mixins for its HTTP and WebSocket protocols."""
    http, ws = protocols(settings, *bases)
    return uvicorn.Config(
        app,
        http=http,
        ws=ws,
        ws_max_size=settings.frame_bytes,
        ws_per_message_deflate=False,  # images are compressed already
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        lifespan="on",
    )


@contextmanager
def logging_on_stderr(name: str = "maskjet.serve", *, origin: str = "") -> Iterator[None]:
    """Log to stderr with `origin` as prefix; drops uvicorn's messages about malformed requests."""
    logger, uvicorns = logging.getLogger(name), logging.getLogger("uvicorn.error")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {origin}%(message)s"))
    before = logger.propagate, uvicorns.level
    logger.propagate = False
    uvicorns.setLevel(logging.CRITICAL)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before[0]
        uvicorns.setLevel(before[1])


class Server(uvicorn.Server):
    """Uvicorn server that announces readiness, and drains on the first signal or a device failure."""

    def __init__(self, config: uvicorn.Config, service: Service, *, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._announce = service, announce
        self._is_signalled = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and announce the service once the models are warm."""
        await super().startup(sockets)
        self._announcing = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        await self._service.warmed_up.wait()
        if self._service.is_warm and not self._service.is_draining:
            self._announce()
        await self._service.broken.wait()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, after a grace period for requests sent before the signal."""
        self._service.is_draining = True
        self._announcing.cancel()
        await self._last_connections()
        self._service.is_closed = True
        start = time.monotonic()
        await self._service.end_streams()
        left_s = self._service.settings.drain_s - (time.monotonic() - start)
        self.config.timeout_graceful_shutdown = max(1, round(left_s))
        await super().shutdown(sockets)

    async def _last_connections(self) -> None:
        """Accept connections that were being opened when the signal arrived, for `GRACE_S`."""
        await asyncio.sleep(GRACE_S)

    def capture_signals(self) -> Any:
        """Handle signals while serving; uvicorn's own handlers would raise them again afterwards."""
        return process.handling_signals(self._end)

    def _end(self, number: int, _: FrameType | None) -> None:
        if self._is_signalled:
            os._exit(128 + number)
        self._is_signalled = True
        self._service.is_draining = True  # not ready from this moment on
        self.should_exit = True
