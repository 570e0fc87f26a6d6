"""Runs whose sources are spread over processes, each with decoders, a model and outputs of its own."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskjet import limits
from maskjet.cli import signals
from maskjet.cli.options import progress_bars
from maskjet.cli.runs import Run, failing, gathering, run_together
from maskjet.cli.stdout import ReaderGoneError, Stdout
from maskjet.cli.summary import SourceSummary
from maskjet.errors import DeviceError, FrameError, InputError, SourceError
from maskjet.host import process, runner

if TYPE_CHECKING:
    from maskjet.host.devices import Place
    from maskjet.outputs.opening import Outputs
    from maskjet.sources.source import Source, UnopenedSource

_REPORT_S = 0.5  # between two reports of a process
_GLANCE_S = 0.2
_MOST_DEATHS = 3  # of a process, without a frame in between
_STATE = ("model", "summary", "stop")  # fields of `Run` that each process has for itself
_log = logging.getLogger("maskjet")


@dataclass(eq=False)
class _Worker:
    """A process with its share of the sources."""

    place: Place
    """Device and environment of the process."""
    positions: Sequence[int]
    """Positions of its sources among all."""
    process: Any
    """The `Popen`."""
    connection: Connection
    """Connection to it; closed when it ends."""
    pump: threading.Thread
    """Copies its lines to the shared outputs."""
    starts: int = 1
    """Number of processes so far with these sources, this one included."""
    deaths: int = 0
    """Number of those that died in a row without a frame."""
    rates: Sequence[float] = ()
    """Frames per second of each source in the process that died before; empty if none has."""
    told_s: float = 0.0
    """Time of the last report with frames, also of the process before, by the monotonic clock."""
    began_s: float | None = None
    """Time of the first report with frames."""
    counts: Sequence[tuple[int, int, bool]] = ()
    """Of each source: frames, detections, and whether it is live."""


def spread(run: Run, found: Sequence[UnopenedSource], outs: Sequence[str], places: Sequence[Place]) -> None:
    """Run a model on sources side by side, in a process for each place.

    A process that dies is replaced by a spare one for its live sources, and the frames that they missed are estimated;
    its files have failed. Outputs that it had begun stay as they are, and new ones are numbered.

    Raises:
        InputError: An output of all sources is neither JSON lines nor a URL for events.
        DeviceError: A process died before its first frame, or three times in a row.
        Exception: The first error of a process, once all have ended.
    """
    from maskjet.outputs.opening import PLACEHOLDER, Outputs, kind_of

    outputs = run.check_outputs(outs, found)
    lines = [out for out in outputs.shared if kind_of(out) == "lines"]
    for out in outputs.shared:
        if out not in lines and "://" not in out:
            raise InputError(f"out must contain {PLACEHOLDER} or be .jsonl with several processes, got {out!r}.")
    run.summary.sources = [SourceSummary(each.name, "running") for each in found]
    urls = [out for out in outputs.shared if out not in lines]
    sinks = Outputs(lines, [() for _ in found], found, outputs.content).open()
    run.processes = len(places)
    workers = _Workers(run, found, replace(outputs, shared=["-"] * bool(lines) + urls), sinks.append)
    with failing(run), signals.stopping(run.stop):
        try:
            with gathering(run, sinks, outputs):
                workers.work(places)
        finally:
            run.summary.outputs = [*run.summary.outputs, *workers.written]
            run.summary.replaced = [path for path in run.summary.outputs if path in outputs.existing]


class _Workers:
    """The processes of a run, and what they have told; `append` adds a line to the shared outputs."""

    def __init__(
        self, run: Run, found: Sequence[UnopenedSource], outputs: Outputs, append: Callable[[str], None]
    ) -> None:
        self._run, self._found, self._outputs, self._append = run, found, outputs, append
        self._appending = threading.Lock()
        self._workers: list[_Worker] = []
        self._spares: dict[str, tuple[Any, Connection, int]] = {}  # by device, see _spawn
        self._errors: list[Exception] = []
        self._is_ending, self._is_broken = False, False
        self._began_s: float | None = None  # of the first report with frames, by the monotonic clock
        self.written: list[str] = []
        """Paths of the processes' own outputs."""

    def work(self, places: Sequence[Place]) -> None:
        """Start a process for each place, and wait until all have ended; raises the first error."""
        summary = self._run.summary
        try:
            for number, place in enumerate(places):
                self._start(place, range(number, len(self._found), len(places)))
            with progress_bars() as bars:
                task = bars.add_task("detecting", total=None)
                while self._workers:
                    for connection in wait([each.connection for each in self._workers], _GLANCE_S):
                        self._receive(next(each for each in self._workers if each.connection is connection))
                    if self._run.is_stopped and not self._is_ending:
                        self._end(self._run.stop.number)
                    bars.update(task, completed=summary.frames)
        finally:
            for each in self._workers:
                each.process.kill()
            for each in [*self._workers]:
                self._bury(each)
            for child, connection, reading in self._spares.values():
                child.kill()
                child.wait()
                connection.close()
                os.close(reading)
            if self._began_s is not None:
                summary.seconds = time.monotonic() - self._began_s
                summary.fps = summary.frames / summary.seconds
        if self._errors:
            raise self._errors[0]

    def _start(self, place: Place, positions: Sequence[int], starts: int = 1, **before: Any) -> None:
        """Start a process; `before` are fields of `_Worker`, of the one that died."""
        run = {each.name: getattr(self._run, each.name) for each in fields(Run) if each.name not in _STATE}
        run |= {"config": replace(self._run.config, device=place.own_device), "streams": len(positions)}
        run["deadlines"] = None if self._run.deadlines is None else self._run.deadlines.of(positions)
        owned = [[_numbered(out, starts) for out in self._outputs.owned[position]] for position in positions]
        child, connection, reading = self._spares.pop(place.device) if place.device in self._spares else _spawn(place)
        with suppress(OSError):  # it has died, which is seen when it is waited for
            connection.send(
                (run, [self._found[each] for each in positions], replace(self._outputs, owned=owned, sources=()))
            )
        pump = threading.Thread(target=self._pump, args=(reading,), daemon=True)
        pump.start()
        self._workers.append(_Worker(place, positions, child, connection, pump, starts, **before))

    def _pump(self, reading: int) -> None:
        """Copy whole lines of a process to the shared outputs."""
        with open(reading, encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n") and not self._is_broken:  # else the process died within it
                    with self._appending:
                        self._add(line)

    def _add(self, line: str) -> None:
        try:
            self._append(line)
        except Exception as error:  # further lines are read all the same, so that processes don't wait
            self._is_broken = True
            if isinstance(error, ReaderGoneError):
                self._run.stop.set(signal.SIGPIPE)
            else:
                self._errors.append(error)
                self._run.stop.event.set()

    def _receive(self, worker: _Worker) -> None:
        """Take a message of a process: its counts, or its summary and error at the end; or nothing, as it has died."""
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        if isinstance(message, list):
            self._count(worker, message)
            return
        summary, error = message
        self._bury(worker)
        ours = self._run.summary
        for position, its in zip(worker.positions, summary.sources, strict=False):
            own = ours.sources[position]
            its.frames, its.detections, its.missed = own.frames, own.detections, own.missed
            ours.sources[position] = its
        for name in ("left_out", "lost_events", "bad_frames", "dropped"):
            setattr(ours, name, getattr(ours, name) + getattr(summary, name))
        if summary.capacity is not None:
            ours.capacity = (ours.capacity or 0) + summary.capacity
        self.written += [path for path in summary.outputs if path != "-"]
        if error is not None:
            self._fail(error)

    def _count(self, worker: _Worker, counts: Sequence[tuple[int, int, bool]]) -> None:
        """Add what a process has done since its last report."""
        now, sources = time.monotonic(), [self._run.summary.sources[position] for position in worker.positions]
        before = worker.counts or [(0, 0, False)] * len(counts)
        for source, old, new in zip(sources, before, counts, strict=True):
            for each in (self._run.summary, source):
                each.frames += new[0] - old[0]
                each.detections += new[1] - old[1]
        worker.counts = counts
        if not any(frames for frames, *_ in counts):
            return
        if worker.began_s is None:
            worker.began_s, self._began_s = now, self._began_s or now
            device = worker.place.device
            if device not in self._spares and any(is_live for *_, is_live in counts) and not self._is_ending:
                with suppress(OSError):  # there are too many processes
                    self._spares[device] = _spawn(worker.place)  # has imported PyTorch, for seconds, when one dies
            for source, rate in zip(sources, worker.rates, strict=False):
                source.missed += round(rate * (now - worker.told_s))
        worker.told_s = now

    def _replace(self, dead: _Worker) -> None:
        """Start a process again that died, with its live sources."""
        why = f"{dead.place} {self._bury(dead)}"
        if not dead.counts and dead.starts == 1:
            self._fail(DeviceError(f"{why} before its first frame.", index=0))
            return
        lives = [is_live for _, _, is_live in dead.counts] or [True] * len(dead.positions)
        positions = []
        for position, is_live in zip(dead.positions, lives, strict=True):
            source = self._run.summary.sources[position]
            if self._is_ending:
                source.state = "stopped"
            elif is_live:
                positions.append(position)
            else:
                source.state, source.error = "failed", f"{why}."
                self._fail(SourceError(f"{source.source!r} was not read to its end: {why}."))
        rates, deaths = dead.rates, dead.deaths + 1
        if dead.began_s is not None:
            seconds = max(dead.told_s - dead.began_s, _REPORT_S)
            rates, deaths = [frames / seconds for frames, *_ in dead.counts], 1
        if deaths >= _MOST_DEATHS:
            self._fail(DeviceError(f"{why}, {_MOST_DEATHS} times in a row without a frame.", index=0))
        elif positions:
            _log.warning("%s, and is started again", why)
            self._run.summary.restarts += 1
            rates = [rates[dead.positions.index(each)] for each in positions] if rates else ()
            self._start(dead.place, positions, dead.starts + 1, deaths=deaths, rates=rates, told_s=dead.told_s)

    def _fail(self, error: Exception) -> None:
        """Keep an error; one that is not of a single source ends all processes."""
        self._errors.append(error)
        if not isinstance(error, SourceError | FrameError) and not self._is_ending:
            self._end(signal.SIGTERM)

    def _end(self, number: int | None) -> None:
        """Let all processes finish their outputs and end."""
        self._is_ending = True
        for each in self._workers:
            with suppress(OSError):
                each.connection.send(number)

    def _bury(self, worker: _Worker) -> str:
        """Wait for a process that ends, and for its last lines; returns how it ended, for messages."""
        self._workers.remove(worker)
        worker.connection.close()
        code = runner.end(worker.process)
        worker.pump.join()
        return runner.tell(code)


def _spawn(place: Place) -> tuple[Any, Connection, int]:
    """Start a process that waits for its sources; returns it, the connection to it, and where its lines are read."""
    reading, writing = os.pipe()
    child, connection = runner.start(__name__, writing, variables=place.variables)
    os.close(writing)
    return child, connection, reading


def _numbered(out: str, starts: int) -> str:
    """The path of an output for the process that is started again: gate.mp4 becomes gate.2.mp4."""
    if starts == 1 or "://" in out:
        return out
    path = Path(out)
    stem, dot, suffixes = path.name.partition(".")
    return str(path.with_name(f"{stem}.{starts}{dot}{suffixes}"))


def main(descriptor: int, lines: int) -> None:
    """One of the processes: run on the sources that come over an inherited socket, with shared lines to a pipe."""
    process.suit_program()
    process.print_warnings()
    process.keep_freed_memory()
    limits.read_environment()
    connection = Connection(descriptor)
    import_module("maskjet.model")  # and PyTorch, before there are sources
    with suppress(EOFError, OSError):
        given, found, outputs = connection.recv()
        run = Run(**given)
        sys.stdout = Stdout(open(lines, "w", encoding="utf-8"))  # noqa: SIM115
        threading.Thread(target=_obey, args=(connection, run.stop), daemon=True).start()
        error = None
        try:
            model = run.load(run.config)  # and compiled before cameras are opened, whose frames would wait meanwhile
            model.prepare(min(run.streaming["batch"] or len(found), model.config.batch))
            run.load = lambda _: model
            run_together(
                run, found, lambda sources: replace(outputs, sources=sources), partial(_report, connection, run)
            )
        except Exception as caught:
            error = caught
        connection.send((run.summary, error))


def _obey(connection: Connection, stop: signals.Stop) -> None:
    """Stop the stream when the first process says so, or is gone."""
    try:
        number = connection.recv()
    except (EOFError, OSError):
        number = signal.SIGTERM
    stop.set(number)


@contextmanager
def _report(connection: Connection, run: Run, sources: Sequence[Source]) -> Iterator[Callable[[int], None]]:
    """Tell the first process the counts of each source, now and then; yields a function to call for each frame."""
    told_s = 0.0

    def tell() -> None:
        nonlocal told_s
        told_s = time.monotonic()
        counts = zip(run.summary.sources, sources, strict=True)
        with suppress(OSError):  # it is gone, so the stream ends
            connection.send([(own.frames, own.detections, source.is_live) for own, source in counts])

    def advance(_: int) -> None:
        if time.monotonic() - told_s >= _REPORT_S:
            tell()

    tell()
    yield advance
    tell()
