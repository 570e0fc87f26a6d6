"""One worker of a service of several processes: serves the connections that the acceptor sends.

`processes` starts it with a `handover.WorkerConfig` on standard input and its channel's descriptor as argument. Signals
are handled by the acceptor, which sends messages; when the acceptor ends for any reason, workers exit at once.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter

from maskjet import limits, process
from maskjet.errors import MaskjetError
from maskjet.serve import server
from maskjet.serve.handover import Channel, WorkerConfig
from maskjet.serve.settings import Settings
from maskjet.serve.siblings import STATE, Siblings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from maskjet.serve.service import Service

_SETTLE_S = 0.1  # to read requests on the last connections
_MOST_CHARACTERS = 2000  # of an error's message
_FAILED = 1


def main() -> None:
    """Run `python -m maskjet.serve.worker DESCRIPTOR`: serve until told to end."""
    for number in server.SIGNALS:
        signal.signal(number, lambda *_: None)  # a terminal sends them to all processes
    end = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(end.fileno(),), daemon=True).start()
    channel, config = Channel(end), WorkerConfig.from_file(sys.stdin.buffer)
    process.suit_program()
    with server.logging_on_stderr("maskjet", origin=f"process {config.number} on {config.device}: "):
        try:
            failure = _serve(config, channel)
        except MaskjetError as error:
            _tell_failure(channel, type(error).__name__, str(error))
            failure = str(error)
    sys.exit(_FAILED if failure else 0)


def _end_with(descriptor: int) -> None:
    """Wait until the acceptor has ended, then exit at once."""
    poller = select.poll()
    poller.register(descriptor, 0)  # POLLHUP is always reported
    poller.poll()
    os._exit(_FAILED)


def _tell_failure(channel: Channel, kind: str, text: str) -> None:
    channel.send("failed", kind, text[:_MOST_CHARACTERS])


def _serve(config: WorkerConfig, channel: Channel) -> str | None:
    """Load the models and serve; returns the message if the device failed."""
    limits.read_environment()
    from maskjet.model import load
    from maskjet.serve.app import create_app

    with ExitStack() as stack:
        models = {
            name: stack.enter_context(load(given, weights=config.weights, **config.engine))
            for name, given in config.models.items()
        }
        stack.enter_context(process.garbage_frozen())
        settings = Settings(**{**config.settings, "source": tuple(config.settings["source"])})
        siblings = Siblings(config, _connector(channel)) if config.count > 1 else None
        app = create_app(models, settings, siblings)
        service: Service = app.state.service
        service.waits_for_others = not config.all_were_ready
        starts = Counter("maskjet_process_restarts", "Starts after an end.", registry=service.metrics.registry)
        starts.inc(config.starts)
        _Server(app, channel).run(sockets=[])
    return service.failure


def _connector(channel: Channel) -> Callable[[int], socket.socket]:
    def connect(number: int) -> socket.socket:
        mine, its = socket.socketpair()
        channel.send("reach", number, passed=its)
        return mine

    return connect


class _ReportsClosed(asyncio.Protocol):
    """Reports to the acceptor that a client's connection has closed."""

    channel: Channel
    """Set in a subclass per server, as uvicorn makes the instances."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.channel.send("closed")


class _Server(server.Server):
    """A server that receives its connections from the acceptor."""

    def __init__(self, app: FastAPI, channel: Channel) -> None:
        service: Service = app.state.service
        config = server.configure(app, service.settings, type("Reports", (_ReportsClosed,), {"channel": channel}))
        super().__init__(config, service, announce=lambda: channel.send("ready"))
        self._channel = channel
        self._sibling_config = server.configure(app, service.settings)
        self._sibling_config.load()
        self._last = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and receive connections."""
        await super().startup(sockets)
        self._channel.start(self._receive)
        self._channel.send("serving")

    async def _wait(self) -> None:
        """Report when the models are warm, and when the device has failed; the acceptor then replaces this worker."""
        await self._service.warmed_up()
        if self._service.is_warm:
            self._announce()
        await self._service.until_failure()
        _tell_failure(self._channel, "DeviceError", self._service.failure or "")

    def _receive(self, message: list[Any], connection: socket.socket | None) -> None:
        match message:
            case ["take", who]:
                self._take(connection, is_client=who == "client")
            case ["all_ready"]:
                self._service.waits_for_others = False
            case ["drain"]:
                self._service.is_draining = True  # not ready from this moment on
                self.should_exit = True
            case ["last"]:
                self._last.set()

    def _take(self, connection: socket.socket | None, *, is_client: bool) -> None:
        self._channel.send("taken")
        if connection is None:  # no descriptor was left for it
            if is_client:
                self._channel.send("closed")
            return
        task = asyncio.create_task(self._connect(connection, is_client=is_client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket, *, is_client: bool) -> None:
        if not is_client:
            await server.adopt(connection, self._sibling_config, self.server_state, app_state=STATE)
        elif not await server.adopt(connection, self.config, self.server_state, app_state=self.lifespan.state):
            self._channel.send("closed")

    async def _last_connections(self) -> None:
        await self._last.wait()
        await asyncio.sleep(_SETTLE_S)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the acceptor."""
        yield


if __name__ == "__main__":
    main()
