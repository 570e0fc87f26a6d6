"""A service of several processes behind one port, as for several GPUs: this process listens, the others serve.

It loads no model. Each connection goes to the ready process with the fewest open ones, by its descriptor. A process
that ends is started again while the others serve on.
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
from maskjet.serve import problems, server
from maskjet.serve.handover import Channel, Job, Taker
from maskjet.serve.settings import Settings
from maskjet.serve.standin import StandIn

_BACKLOG = 2048  # uvicorn's
_AT_ONCE = 64  # connections that are accepted before messages are read
_LATE_S = 1.0  # after which a process that takes none gets new ones only if all are late
_HUNG_S = 30.0  # after which it is ended
_REST_S = 0.05  # while no process has room, or no descriptor is left
_END_S = 12.0  # for threads and models, after `Settings.drain_s`
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
    """Serve models in a process for each place until SIGTERM, SIGINT or SIGHUP; see `server.run`.

    Args:
        models: What to load by name, as `maskjet.load` takes it.
        places: Of `devices.choose`.
        config: How the models run; each process has the device of its place.
        settings: Where to listen, and the limits. `connections` holds for all processes together, and the first process
            has the sources; other limits hold for each process.
        weights: Checkpoint of the one model, if it has a name.
        announce: Given the URL once, when all processes are ready.

    Raises:
        InputError: Other machines would reach the service and there is no token; or a model can't be loaded.
        UnsupportedError: The port can't be opened, or a process ended before it was ready.
        MaskjetError: Another error of `maskjet.load`.
    """

    def job(place: Place, starts: int, is_whole: bool) -> Job:
        own = replace(settings, source=settings.source if place.number == 0 else ())
        return Job(
            number=place.number,
            count=len(places),
            device=place.device,
            starts=starts,
            is_whole=is_whole,
            models=dict(models),
            weights=None if weights is None else str(weights),
            config=asdict(replace(config, device=place.own_device)),
            settings=asdict(own),
        )

    with server.listen(settings) as listener, server.logging_on_stderr():
        service = _Service(places, job, listener, settings, announce=lambda: announce(server.url_of(listener)))
        asyncio.run(service.run())


class _Service:
    """All processes of a service."""

    def __init__(
        self,
        places: Sequence[Place],
        job: Callable[[Place, int, bool], Job],
        listener: socket.socket,
        settings: Settings,
        *,
        announce: Callable[[], None],
    ) -> None:
        self._places, self._job, self._listener, self._settings = places, job, listener, settings
        self._announce, self._patience_s = announce, settings.drain_s + _END_S
        self._processes: dict[int, Taker] = {}
        self._is_whole = False
        self._is_ending = False
        self._ending: asyncio.Task[None] | None = None
        self._error: MaskjetError | None = None
        self._standin = StandIn(settings)

    async def run(self) -> None:
        """Serve until a signal."""
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        watching = asyncio.create_task(self._watch())
        with self._signals():
            try:
                await asyncio.gather(*map(self._keep, self._places))
            finally:
                for process in self._processes.values():
                    process.kill()
                watching.cancel()
                self._stop_listening()
        if self._ending is not None:
            self._ending.cancel()
        if self._error is not None:
            raise self._error

    # Processes.

    async def _keep(self, place: Place) -> None:
        """Run a process, and start it again as often as it ends, until the service does."""
        starts = 0
        while not self._is_ending:
            try:
                process = await self._start(place, starts)
            except OSError as error:
                self._fail(UnsupportedError(f"The service has ended: {place} can't be started: {explain(error)}."))
                return
            await process.process.wait()
            left = process.close()
            del self._processes[place.number]
            if not self._is_ending and process.is_ready:
                starts += 1
                _log.warning("%s is started again: it %s", place, process.end)
            elif not self._is_ending:
                self._fail(_error_of(process))
            for connection in left:
                self._place(connection)

    async def _start(self, place: Place, starts: int) -> Taker:
        mine, its = Channel.pair()
        command, environment = _command(its.fileno()), {**os.environ, **place.variables}
        with ExitStack() as failed:
            failed.enter_context(mine)
            with its, self._job(place, starts, self._is_whole).to_file() as job:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=job, pass_fds=[its.fileno()], env=environment
                )
            failed.pop_all()
        started = Taker(place, process, Channel(mine))
        self._processes[place.number] = started
        started.channel.start(partial(self._receive, started))
        if self._is_ending:  # since a moment ago
            started.kill()
        return started

    def _receive(self, process: Taker, message: list[Any], connection: socket.socket | None) -> None:
        match message:
            case ["taken"]:
                process.taken()
            case ["closed"]:
                process.open -= 1
            case ["serving"]:
                process.is_serving = True
            case ["ready"]:
                process.is_ready = True
                self._check_whole()
            case ["failed", kind, text]:
                process.failure = kind, text
                process.dismiss(self._patience_s)
            case ["reach", number] if connection is not None:
                self._reach(number, connection)

    def _reach(self, number: int, connection: socket.socket) -> None:
        """Hand a connection from one process to another; it is closed if that one can't take it."""
        other = self._processes.get(number)
        if other is not None and other.is_serving and other.has_room:
            with suppress(OSError):
                other.hand(connection, is_client=False)
                return
        connection.close()

    def _check_whole(self) -> None:
        """Tell once that all processes are ready."""
        ready = [process for process in self._processes.values() if process.is_ready]
        if self._is_whole or len(ready) < len(self._places):
            return
        self._is_whole = True
        for process in ready:
            process.channel.send("whole")
        self._announce()

    async def _watch(self) -> None:
        """End processes that have hung: they take no connections, and would never end by themselves."""
        while True:
            await asyncio.sleep(1)
            for process in self._processes.values():
                if process.is_ready and process.waits_s(time.monotonic()) > _HUNG_S:
                    _log.error("%s has taken no connection for %g s and is ended", process.place, _HUNG_S)
                    process.kill()

    # Connections.

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            takers = self._takers()
            if takers and not any(process.has_room for process in takers):
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
        """Accept nothing for a moment; clients wait in the kernel."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        loop.call_later(_REST_S, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() != -1:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _takers(self) -> list[Taker]:
        """The processes that may have new connections: those that are ready, else those that answer at all."""
        serving = [process for process in self._processes.values() if process.is_serving]
        return [process for process in serving if process.is_ready] or serving

    def _place(self, connection: socket.socket) -> None:
        """Hand a client's connection on."""
        taken = sum(process.open for process in self._processes.values()) + self._standin.open
        if taken >= self._settings.connections + server.SPARE:
            _refuse(connection, server.too_many(self._settings))
            return
        takers = self._takers()
        if not takers:
            self._standin.take(connection)
            return
        now = time.monotonic()
        best = min(takers, key=lambda each: (each.waits_s(now) > _LATE_S, each.open, each.handed_at))
        try:
            best.hand(connection, is_client=True)
        except OSError:
            _refuse(connection, problems.unavailable("The service has no descriptors left; try again later."))

    # The end.

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Let the first signal end the service, the second one at once."""
        loop, before, is_told = asyncio.get_running_loop(), {}, False

        def end(number: int, _: FrameType | None) -> None:
            nonlocal is_told
            if is_told:
                for process in self._processes.values():
                    process.kill()
                os._exit(128 + number)
            is_told = self._is_ending = True  # from now on a process that ends has been ended
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
        """End the service with an error."""
        self._error = self._error or error
        self._begin_end()

    def _begin_end(self) -> None:
        self._is_ending = True
        if self._ending is None:
            self._ending = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """End all processes within a bounded time; see `server.Server.shutdown`."""
        self._standin.is_draining = True
        for process in list(self._processes.values()):
            if process.is_serving:
                process.channel.send("drain")
            else:
                process.kill()
        await asyncio.sleep(server.GRACE_S)
        self._stop_listening()
        for process in self._processes.values():
            process.dismiss(self._patience_s)

    def _stop_listening(self) -> None:
        if self._listener.fileno() != -1:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()


def _refuse(connection: socket.socket, problem: problems.ProblemError) -> None:
    """Answer without a request, and close the connection."""
    with connection, suppress(OSError):
        connection.setblocking(False)
        connection.send(server.refusal(problem))


def _command(descriptor: int) -> list[str]:
    """The program of a process; modules in the current folder are not taken for libraries, unless maskjet is there."""
    folder = Path(__file__).parents[2]
    safe = [] if folder == Path.cwd() else ["-P"]
    return [sys.executable, *safe, "-m", "maskjet.serve.worker", str(descriptor)]


def _error_of(process: Taker) -> MaskjetError:
    """The error of a process that ended before it was ready."""
    if process.failure is not None and process.failure[0] in _KINDS:
        return _KINDS[process.failure[0]](process.failure[1])
    return UnsupportedError(f"The service has ended: {process.place} was not ready yet when it {process.end}")
