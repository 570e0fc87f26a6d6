"""Supervisor of a multi-process service behind one port: starts and restarts a worker per place.

The supervisor opens the port, loads no model and accepts no connection: `worker` does.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

from maskjet import errors
from maskjet.config import EngineConfig
from maskjet.errors import MaskjetError, UnsupportedError, explain
from maskjet.host import process
from maskjet.host.devices import Place
from maskjet.host.runner import Child, receive
from maskjet.serve import server
from maskjet.serve.process_table import ProcessTable
from maskjet.serve.settings import Settings
from maskjet.serve.worker import WorkerConfig

_TICK_S = 0.05
_HUNG_S = 30.0  # seconds without a heartbeat after which a worker is killed
_END_S = 12.0  # time for threads and models to end after `Settings.drain_s`
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

    Each worker runs them on the device of its place. `Settings.connections` limits all workers together, other limits
    each; worker 0 has the sources. `announce` is called with the URL once all are ready.

    Raises:
        InputError: Other machines would reach the service and there is no token; or a model can't be loaded.
        UnsupportedError: The port can't be opened, or a worker ended before it was ready.
        MaskjetError: Another error of `maskjet.load`.
    """
    table, secret = ProcessTable(len(places)), secrets.token_hex()
    with server.listen(settings) as listener, server.logging_on_stderr():
        listener.setblocking(False)

        def configure(place: Place, starts: int) -> WorkerConfig:
            own = replace(settings, source=settings.source if place.number == 0 else ())
            return WorkerConfig(
                number=place.number,
                count=len(places),
                device=place.device,
                starts=starts,
                supervisor=os.getpid(),
                secret=secret,
                models=dict(models),
                weights=None if weights is None else str(weights),
                engine=asdict(replace(config, device=place.own_device)),
                settings=asdict(own),
            )

        url = server.url_of(listener)
        _Supervisor(places, configure, listener, table, settings.drain_s, announce=lambda: announce(url)).run()


@dataclass
class _Worker:
    place: Place
    child: Child
    starts: int
    """Restarts before."""
    deadline: float = math.inf
    """When it is killed, on the monotonic clock; set once it drains."""
    failure: tuple[str, str] | None = None
    """Kind and message of the error that it told."""

    def end(self) -> str:
        """Wait for its end; returns a description for messages."""
        how = self.child.end()
        return how if self.failure is None else f"failed: {self.failure[1]}"


class _Supervisor:
    """Starts, restarts and ends the workers."""

    def __init__(
        self,
        places: Sequence[Place],
        configure: Callable[[Place, int], WorkerConfig],
        listener: socket.socket,
        table: ProcessTable,
        drain_s: float,
        *,
        announce: Callable[[], None],
    ) -> None:
        self._places, self._configure, self._listener, self._table = places, configure, listener, table
        self._announce, self._patience_s = announce, server.GRACE_S + drain_s + _END_S
        self._workers: dict[int, _Worker] = {}
        self._is_ending = self._is_signalled = False
        self._error: MaskjetError | None = None

    def run(self) -> None:
        """Serve until a signal."""
        with self._signals():
            try:
                for place in self._places:
                    self._start(place)
                while self._workers:
                    workers = {each.child: each for each in self._workers.values()}
                    for child, message in receive(workers, _TICK_S):
                        if message is None:
                            self._replace(workers[child])
                        else:
                            workers[child].failure = (message[0], message[1])
                    self._step()
            finally:
                for worker in self._workers.values():
                    worker.child.process.kill()
                    worker.child.end()
        if self._error is not None:
            raise self._error

    def _start(self, place: Place, starts: int = 0) -> None:
        if self._is_ending:
            return
        orders, shared = asdict(self._configure(place, starts)), (self._listener.fileno(), self._table.descriptor)
        try:
            child = Child.start("maskjet.serve.worker", orders, *shared, variables=place.variables)
        except OSError as error:
            self._fail(UnsupportedError(f"The service has ended: {place} can't be started: {explain(error)}."))
            return
        self._workers[place.number] = _Worker(place, child, starts)

    def _step(self) -> None:
        """Restart ended workers, kill hung ones, and announce or drain the service."""
        for number, worker in list(self._workers.items()):
            row, now = self._table.rows[number], time.monotonic()
            if now > worker.deadline:
                _log.warning("%s has not ended in time and is ended", worker.place)
                worker.child.process.kill()
                worker.deadline = now + self._patience_s
            elif worker.deadline == math.inf and row.is_ready and not row.turned_ns:  # draining after a device failure
                worker.deadline = now + self._patience_s
            elif worker.deadline == math.inf and row.is_ready and row.still_s > _HUNG_S:
                _log.error("%s has not answered for %g s and is ended", worker.place, _HUNG_S)
                worker.child.process.kill()
                worker.deadline = now + self._patience_s
        if self._is_ending:
            self._drain()
        elif not self._table.were_all_ready and all(row.is_ready for row in self._table.rows):
            self._table.note_all_ready()
            self._announce()

    def _replace(self, worker: _Worker) -> None:
        """Restart an ended worker; if it was never ready, the service fails instead."""
        place, was_ready = worker.place, self._table.rows[worker.place.number].is_ready
        del self._workers[place.number]
        self._table.clear(place.number)
        how = worker.end()
        if not self._is_ending and was_ready:
            _log.warning("%s is started again: it %s", place, how)
            self._start(place, worker.starts + 1)
        elif not self._is_ending:
            self._fail(_error_of(worker, how))

    def _drain(self) -> None:
        """Drain all workers within a bounded time; see `server.Server.shutdown`."""
        if self._listener.fileno() != -1:
            self._listener.close()
            for worker in self._workers.values():
                worker.child.process.terminate()
                worker.deadline = time.monotonic() + self._patience_s

    def _fail(self, error: MaskjetError) -> None:
        """End the service; `run` then raises this error."""
        self._error, self._is_ending = self._error or error, True

    def _signals(self) -> AbstractContextManager[None]:
        """Drain on the first signal, and exit at once on the second."""

        def end(number: int, _: FrameType | None) -> None:
            if self._is_signalled:
                for worker in self._workers.values():
                    worker.child.process.kill()
                os._exit(128 + number)
            self._is_signalled = self._is_ending = True  # workers that end from now on have not failed

        return process.handling_signals(end)


def _error_of(worker: _Worker, how: str) -> MaskjetError:
    """The error of a worker that ended before it was ready."""
    if worker.failure is not None and worker.failure[0] in _KINDS:
        return _KINDS[worker.failure[0]](worker.failure[1])
    return UnsupportedError(f"The service has ended: {worker.place} was not ready yet when it {how}")
