"""A service of several processes behind one port: this acceptor listens, and one worker per device serves.

The acceptor loads no model. It sends each connection, by descriptor, to the ready worker with the fewest open ones, and
restarts workers that end while the others serve on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from maskjet import errors
from maskjet.config import EngineConfig
from maskjet.devices import Place
from maskjet.errors import MaskjetError, UnsupportedError, explain
from maskjet.serve import connections, problems, server
from maskjet.serve.handover import Channel, WorkerConfig, WorkerHandle
from maskjet.serve.placeholder import PlaceholderApp
from maskjet.serve.settings import Settings

_AT_ONCE = 64  # connections accepted before messages are read
_LATE_S = 1.0  # a worker with a connection untaken for longer gets new ones only if all are late
_HUNG_S = 30.0  # such a worker is killed after this
_REST_S = 0.05  # pause of accepting while no worker has room or no descriptor is left
_END_S = 12.0  # for threads and models to end, after `Settings.drain_s`
_KINDS = {
    kind.__name__: kind
    for kind in (errors.InputError, errors.CheckpointError, errors.UnsupportedError, errors.MissingDependencyError)
}
_log = logging.getLogger("maskjet.serve")


def serve(
    models: Mapping[str, str],
    places: Sequence[Place],
    config: EngineConfig,
    settings: Settings,
    *,
    weights: Path | None = None,
    announce: Callable[[str], None],
) -> None:
    """Serve models with one worker per place until SIGTERM, SIGINT or SIGHUP; see `server.run`.

    Args:
        models: Models by name, as `maskjet.load` takes them.
        places: Devices, of `devices.choose`.
        config: How the models run; each worker has the device of its place.
        settings: Address, token and limits. `connections` limits all workers together, other limits each worker.
            Worker 0 has the sources.
        weights: Checkpoint of the only model.
        announce: Called with the URL once all workers are ready.

    Raises:
        InputError: Other machines would reach the service and there is no token; or a model can't be loaded.
        UnsupportedError: The port can't be opened, or a worker ended before it was ready.
        MaskjetError: Another error of `maskjet.load`.
    """

    def configure(place: Place, starts: int, all_were_ready: bool) -> WorkerConfig:
        own = replace(settings, source=settings.source if place.number == 0 else ())
        return WorkerConfig(
            number=place.number,
            count=len(places),
            device=place.device,
            starts=starts,
            all_were_ready=all_were_ready,
            models=dict(models),
            weights=None if weights is None else str(weights),
            engine=asdict(replace(config, device=place.own_device)),
            settings=asdict(own),
        )

    with server.listen(settings) as listener, server.logging_on_stderr():
        service = _Acceptor(places, configure, listener, settings, announce=lambda: announce(server.url_of(listener)))
        asyncio.run(service.run())


class _Acceptor:
    """Accepts connections, and starts, restarts and ends the workers."""

    def __init__(
        self,
        places: Sequence[Place],
        configure: Callable[[Place, int, bool], WorkerConfig],
        listener: socket.socket,
        settings: Settings,
        *,
        announce: Callable[[], None],
    ) -> None:
        self._places, self._configure, self._listener, self._settings = places, configure, listener, settings
        self._announce, self._patience_s = announce, settings.drain_s + _END_S
        self._workers: dict[int, WorkerHandle] = {}
        self._all_were_ready = False
        self._is_ending = False
        self._ending: asyncio.Task[None] | None = None
        self._error: MaskjetError | None = None
        self._placeholder = PlaceholderApp(settings)

    async def run(self) -> None:
        """Serve until a signal."""
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        watching = asyncio.create_task(self._watch())
        with self._signals():
            try:
                await asyncio.gather(*map(self._keep, self._places))
            finally:
                for worker in self._workers.values():
                    worker.kill()
                watching.cancel()
                self._stop_listening()
        if self._ending is not None:
            self._ending.cancel()
        if self._error is not None:
            raise self._error

    # Workers.

    async def _keep(self, place: Place) -> None:
        """Run a worker and restart it whenever it ends, until the service ends."""
        starts = 0
        while not self._is_ending:
            try:
                worker = await self._start(place, starts)
            except OSError as error:
                self._fail(UnsupportedError(f"The service has ended: {place} can't be started: {explain(error)}."))
                return
            await worker.process.wait()
            left = worker.close()
            del self._workers[place.number]
            if not self._is_ending and worker.is_ready:
                starts += 1
                _log.warning("%s is started again: it %s", place, worker.end)
            elif not self._is_ending:
                self._fail(_error_of(worker))
            for connection in left:
                self._place(connection)

    async def _start(self, place: Place, starts: int) -> WorkerHandle:
        mine, its = Channel.pair()
        command = [sys.executable, "-m", "maskjet.serve.worker", str(its.fileno())]
        with ExitStack() as failed:
            failed.enter_context(mine)
            with its, self._configure(place, starts, self._all_were_ready).to_file() as config:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=config, pass_fds=[its.fileno()], env={**os.environ, **place.variables}
                )
            failed.pop_all()
        started = WorkerHandle(place, process, Channel(mine))
        self._workers[place.number] = started
        started.channel.start(partial(self._receive, started))
        if self._is_ending:  # since it was begun
            started.kill()
        return started

    def _receive(self, worker: WorkerHandle, message: list[Any], connection: socket.socket | None) -> None:
        match message:
            case ["taken"]:
                worker.taken()
            case ["closed"]:
                worker.open -= 1
            case ["serving"]:
                worker.is_serving = True
            case ["ready"]:
                worker.is_ready = True
                self._check_all_ready()
            case ["failed", kind, text]:
                worker.failure = kind, text
                worker.dismiss(self._patience_s)
            case ["reach", number] if connection is not None:
                self._reach(number, connection)

    def _reach(self, number: int, connection: socket.socket) -> None:
        """Pass a connection from one worker to another; it is closed if that one can't take it."""
        other = self._workers.get(number)
        if other is not None and other.is_serving and other.has_room:
            with suppress(OSError):
                other.hand(connection, is_client=False)
                return
        connection.close()

    def _check_all_ready(self) -> None:
        """Announce the service once all workers are ready."""
        ready = [worker for worker in self._workers.values() if worker.is_ready]
        if self._all_were_ready or len(ready) < len(self._places):
            return
        self._all_were_ready = True
        for worker in ready:
            worker.channel.send("all_ready")
        self._announce()

    async def _watch(self) -> None:
        """Kill workers that hang: they take no connections, and would not end by themselves."""
        while True:
            await asyncio.sleep(1)
            for worker in self._workers.values():
                if worker.is_ready and worker.waits_s(time.monotonic()) > _HUNG_S:
                    _log.error("%s has taken no connection for %g s and is ended", worker.place, _HUNG_S)
                    worker.kill()

    # Connections.

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            candidates = self._candidates()
            if candidates and not any(worker.has_room for worker in candidates):
                self._rest()
                return
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError:  # no descriptor is left
                self._rest()
                return
            self._place(connection)

    def _rest(self) -> None:
        """Pause accepting; clients wait in the kernel's backlog."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        loop.call_later(_REST_S, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() != -1:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _candidates(self) -> list[WorkerHandle]:
        """Workers that may get new connections: those that are ready, else those that serve at all."""
        serving = [worker for worker in self._workers.values() if worker.is_serving]
        return [worker for worker in serving if worker.is_ready] or serving

    def _place(self, connection: socket.socket) -> None:
        """Send a client's connection to a worker."""
        taken = sum(worker.open for worker in self._workers.values()) + self._placeholder.open
        if taken >= self._settings.connections + connections.SPARE:
            _refuse(connection, connections.too_many(self._settings))
            return
        candidates = self._candidates()
        if not candidates:
            self._placeholder.take(connection)
            return
        now = time.monotonic()
        best = min(candidates, key=lambda each: (each.waits_s(now) > _LATE_S, each.open, each.handed_at))
        try:
            best.hand(connection, is_client=True)
        except OSError:
            _refuse(connection, problems.unavailable("The service has no descriptors left; try again later."))

    # Shutdown.

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Drain on the first signal, and exit at once on the second."""
        loop, before, is_signalled = asyncio.get_running_loop(), {}, False

        def end(number: int, _: FrameType | None) -> None:
            nonlocal is_signalled
            if is_signalled:
                for worker in self._workers.values():
                    worker.kill()
                os._exit(128 + number)
            is_signalled = self._is_ending = True  # a worker that ends from now on is not a failure
            loop.call_soon_threadsafe(self._begin_end)

        if threading.current_thread() is threading.main_thread():
            for number in server.SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, end)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _fail(self, error: MaskjetError) -> None:
        """End the service, which then raises this error."""
        self._error = self._error or error
        self._begin_end()

    def _begin_end(self) -> None:
        self._is_ending = True
        if self._ending is None:
            self._ending = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """Drain all workers within a bounded time; see `server.Server.shutdown`."""
        self._placeholder.is_draining = True
        for worker in list(self._workers.values()):
            if worker.is_serving:
                worker.channel.send("drain")
            else:
                worker.kill()
        await asyncio.sleep(server.GRACE_S)
        self._stop_listening()
        for worker in self._workers.values():
            worker.dismiss(self._patience_s)

    def _stop_listening(self) -> None:
        if self._listener.fileno() != -1:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()


def _refuse(connection: socket.socket, problem: problems.ProblemError) -> None:
    """Answer before a request was read, and close the connection."""
    with connection, suppress(OSError):
        connection.setblocking(False)
        connection.send(connections.refusal(problem))


def _error_of(worker: WorkerHandle) -> MaskjetError:
    """The error of a worker that ended before it was ready."""
    if worker.failure is not None and worker.failure[0] in _KINDS:
        return _KINDS[worker.failure[0]](worker.failure[1])
    return UnsupportedError(f"The service has ended: {worker.place} was not ready yet when it {worker.end}")
