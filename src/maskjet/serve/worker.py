"""Worker process of a service: accepts connections from the shared port, balanced with other workers.

All processes wait for connections at one listening socket; the one with the fewest takes them. Where each takes what it
can, connections that stay gather in some of them (benchmarks/serve.md). `processes` starts a worker and sends it a
`WorkerConfig`, ends it with SIGTERM, and receives why it failed.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from prometheus_client import Counter

from maskjet import limits
from maskjet.errors import MaskjetError
from maskjet.host import process
from maskjet.serve import connections, server
from maskjet.serve.process_table import ProcessTable, Row
from maskjet.serve.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from maskjet.serve.service import Service

_PR_SET_PDEATHSIG = 1  # option of prctl(2)
_MOST_CHARACTERS = 2000  # longest error message to report
_FAILED = 1
_LATER_S = 0.001  # pause of a worker that has more connections than others
_REST_S = 0.05  # pause when out of descriptors; clients wait in the listen backlog


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of a worker; sent over its connection, since it includes the token."""

    number: int
    """Number of the worker, from 0; worker 0 watches the sources."""
    count: int
    """Number of workers of the service."""
    device: str
    """Device of the worker, as named by the supervisor."""
    starts: int
    """Number of restarts of this worker so far."""
    supervisor: int
    """Process id of the supervisor."""
    secret: str = field(repr=False)
    """Token by which workers authenticate to each other; see `other_workers`."""
    models: Mapping[str, str]
    """Model arguments of `maskjet.load`, by name."""
    weights: str | None
    """Path of the checkpoint if there is a single model; None otherwise."""
    engine: Mapping[str, Any]
    """Fields of `EngineConfig`."""
    settings: Mapping[str, Any] = field(repr=False)
    """Fields of `Settings`."""


def main(descriptor: int, listener: int, table: int) -> None:
    """Serve until told to end; gets descriptors of the connection, the listening socket and the `ProcessTable`."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a service manager sends these to all processes
        signal.signal(number, signal.SIG_IGN)
    supervisor = Connection(descriptor)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # die with the supervisor
    try:
        config = WorkerConfig(**json.loads(supervisor.recv_bytes()))
    except EOFError:  # it died before the line above
        sys.exit(_FAILED)
    if os.getppid() != config.supervisor:
        sys.exit(_FAILED)
    process.suit_program()
    with server.logging_on_stderr("maskjet", origin=f"process {config.number} on {config.device}: "):
        try:
            failure = _serve(config, listener, table)
        except MaskjetError as error:
            failure = type(error).__name__, str(error)
        if failure is not None:
            kind, message = failure
            with suppress(OSError):
                supervisor.send_bytes(json.dumps([kind, message[:_MOST_CHARACTERS]]).encode())
            os._exit(_FAILED)  # at once: threads may hang on a failed device


def _serve(config: WorkerConfig, listening: int, shared: int) -> tuple[str, str] | None:
    """Load the models and serve; returns kind and message of the error that ended it."""
    limits.read_environment()
    from maskjet.model import load
    from maskjet.serve.app import create_app
    from maskjet.serve.other_workers import OtherWorkers

    table = ProcessTable(config.count, shared)
    with ExitStack() as stack:
        models = {
            name: stack.enter_context(load(given, weights=config.weights, **config.engine))
            for name, given in config.models.items()
        }
        stack.enter_context(process.garbage_frozen())
        settings = Settings(**{**config.settings, "source": tuple(config.settings["source"])})
        other_workers = OtherWorkers(table, config.number, config.device, config.secret)
        app = create_app(models, settings, other_workers if config.count > 1 else None)
        service: Service = app.state.service
        starts = Counter("maskjet_process_restarts", "Starts after an end.", registry=service.metrics.registry)
        starts.inc(config.starts)
        listener = stack.enter_context(socket.socket(fileno=listening))
        _Server(app, listener, table, config.number).run(sockets=[])
        return None if service.failure is None else (type(service.error).__name__, service.failure)


class _Counted(asyncio.Protocol):
    """Protocol mixin that counts closed client connections."""

    row: Row
    """Row of this worker; set in a subclass per server, since uvicorn creates the instances."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.row.connections -= 1


class _Server(server.Server):
    """Server on the shared port, and on a loopback port of its own for the other workers."""

    def __init__(self, app: FastAPI, listener: socket.socket, table: ProcessTable, number: int) -> None:
        service: Service = app.state.service
        self._listener, self._table, self._number, self._row = listener, table, number, table.rows[number]
        config = server.configure(app, service.settings, type("Counted", (_Counted,), {"row": self._row}))
        super().__init__(config, service, announce=self._note_ready)
        self._inner = server.configure(app, service.settings)
        self._inner.load()
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and listen; a restarted worker listens only once its models are warm."""
        await super().startup(sockets)
        inner = await asyncio.get_running_loop().create_server(self._protocol_of(self._inner), "127.0.0.1", 0)
        self.servers.append(inner)
        self._row.port = inner.sockets[0].getsockname()[1]
        if not self._table.were_all_ready:
            self._listen()  # to answer health probes meanwhile

    def _note_ready(self) -> None:
        self._row.is_ready = 1
        self._listen()

    def _listen(self) -> None:
        self._row.turn()
        self._resume()

    async def on_tick(self, counter: int) -> bool:
        """Record a heartbeat of the event loop."""
        if self._row.turned_ns:
            self._row.turn()
        return await super().on_tick(counter)

    def _accept(self) -> None:
        """Accept a connection, or leave it to a worker with fewer."""
        if not self._table.has_fewest(self._number):
            self._pause(_LATER_S)
            return
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # taken by another worker, or disconnected
            return
        except OSError:  # out of descriptors
            self._row.is_full = 1
            self._pause(_REST_S)
            return
        self._row.is_full = 0
        connection.setblocking(False)
        settings = self._service.settings
        if self._table.count_connections() >= settings.connections + connections.SPARE:
            with connection, suppress(OSError):
                connection.send(connections.refusal(connections.too_many(settings)))
            return
        self._row.connections += 1
        task = asyncio.create_task(self._connect(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol_of(self.config), connection)
        except OSError:  # the client disconnected
            connection.close()
            self._row.connections -= 1

    def _protocol_of(self, config: uvicorn.Config) -> Callable[[], asyncio.Protocol]:
        loop, protocol = asyncio.get_running_loop(), cast(Any, config.http_protocol_class)
        return lambda: protocol(
            config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
        )

    def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() != -1:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def _last_connections(self) -> None:
        if self._service.failure is None:  # after a failure the other workers accept them
            await super()._last_connections()
        self._row.turned_ns = 0
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()

    def _end(self, number: int, frame: FrameType | None) -> None:
        """Drain; systemd sends SIGTERM to all processes, as the supervisor does."""
        self._is_signalled = False
        super()._end(number, frame)
