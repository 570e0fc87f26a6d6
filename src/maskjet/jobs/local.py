"""Workers on this machine: one process per device, which processes several segments at a time.

A process that dies, by a signal or by a failing GPU, is restarted, and its segments go to the next free process. Driver
and worker exchange JSON over a socket pair: output on stdout does no harm, and a worker ends when its driver is gone.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from maskjet.devices import SEGMENTS_PER_GPU, Place
from maskjet.errors import DeviceError
from maskjet.jobs.markers import TRIES
from maskjet.jobs.segments import Segment
from maskjet.jobs.work import Outcome, parse_answer

_GLANCE_S = 0.1  # polling interval of the plan while no worker answers
_MOST_DEATHS = TRIES + 2  # in a row, without a finished segment, after which the job ends
_PATIENCE_S = 5.0  # until a process that should end is killed
_log = logging.getLogger("maskjet")

Task = tuple[str, Segment]

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment of workers on a CPU: rounding of sums depends on the number of threads. Concurrent segments use the cores
instead, which is faster."""


@dataclass
class _Process:
    """A worker's process."""

    place: Place
    process: subprocess.Popen[bytes]
    connection: Connection
    tasks: dict[str, Segment] = field(default_factory=dict)
    """Segments assigned to it, by the names of their parts."""


class LocalWorkers:
    """One process per device of this machine.

    Args:
        orders: Orders of `Worker` but for device and streams.
        places: The devices.
        streams: Segments per process at a time.
    """

    def __init__(self, orders: Mapping[str, Any], places: Sequence[Place], streams: int) -> None:
        self._orders, self._places, self._streams = orders, places, streams
        self._processes: list[_Process] = []
        self._again: deque[Task] = deque()  # segments of processes that died
        self._deaths: dict[int, int] = {}  # in a row, by number of the place

    def run(self, tasks: Iterator[Task | None], stop: threading.Event) -> Iterator[Outcome]:
        """Process segments; see `driver.Workers.run`.

        Raises:
            MaskjetError: A worker can't start, or a part can't be written; see `Worker`.
        """
        try:
            self._processes = [self._start(place) for place in self._places]
            has_more = True
            while has_more or self._again or any(each.tasks for each in self._processes):
                if stop.is_set():
                    has_more = False
                    self._again.clear()
                else:
                    has_more = self._feed(tasks)
                yield from self._receive()
        finally:
            self.close()

    def _feed(self, tasks: Iterator[Task | None]) -> bool:
        """Assign segments to processes until each has one waiting; returns False at the end of the plan."""
        while has_room := [each for each in self._processes if len(each.tasks) <= self._streams]:
            task = self._again.popleft() if self._again else next(tasks, ())
            if not task:
                return task is None
            each = min(has_room, key=lambda each: len(each.tasks))
            part, segment = task
            each.tasks[part] = segment
            with suppress(OSError):  # a dead process is noticed in `_receive`
                each.connection.send_bytes(json.dumps({"part": part, "segment": segment.as_dict()}).encode())
        return True

    def _receive(self) -> Iterator[Outcome]:
        by_connection: dict[Any, _Process] = {each.connection: each for each in self._processes}
        for connection in wait(list(by_connection), _GLANCE_S):
            each = by_connection[connection]
            try:
                message = json.loads(each.connection.recv_bytes())
            except (EOFError, OSError):
                self._restart(each)
                continue
            outcome = parse_answer(message["answer"])
            each.tasks.pop(message["part"], None)
            if outcome is not None:
                if not outcome.is_lost:
                    self._deaths.pop(each.place.number, None)
                yield outcome

    def _restart(self, dead: _Process) -> None:
        """Restart a process, and let others have its segments."""
        code = _end(dead)
        shown = f"signal {-code}" if code < 0 else f"exit code {code}"
        deaths = self._deaths[dead.place.number] = self._deaths.get(dead.place.number, 0) + 1
        if deaths >= _MOST_DEATHS:
            raise DeviceError(f"{dead.place} died {deaths} times without a result, at last with {shown}.", index=0)
        _log.warning("The process on %s died (%s), and is started again.", dead.place.device, shown)
        self._processes[self._processes.index(dead)] = self._start(dead.place)
        self._again.extend(dead.tasks.items())

    def _start(self, place: Place) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "maskjet.jobs.worker", str(theirs.fileno())],
                env={**os.environ, **place.variables, **(ONE_THREAD if place.device == "cpu" else {})},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is for results
                start_new_session=True,  # Ctrl-C is the driver's to handle
            )
        connection = Connection(ours.detach())
        orders = {**self._orders, "device": place.own_device, "streams": self._streams}
        with suppress(OSError):  # as in `_feed`
            connection.send_bytes(json.dumps(orders).encode())
        return _Process(place, process, connection)

    def close(self) -> None:
        """Kill all processes; they lose the parts that they are writing."""
        for each in self._processes:
            each.process.kill()
        for each in self._processes:
            _end(each)
        self._processes = []


def choose_streams(places: Sequence[Place]) -> int:
    """Default of segments per process at a time: a GPU's share of `SEGMENTS_PER_GPU`, or a CPU's of the cores."""
    if any(place.device != "cpu" for place in places):
        return max(1, SEGMENTS_PER_GPU // max(Counter(place.device for place in places).values()))
    return max(1, len(os.sched_getaffinity(0)) // len(places))


def _end(each: _Process) -> int:
    """Close the connection to a process, wait until it ends, and return its exit code."""
    each.connection.close()
    try:
        return each.process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        each.process.kill()
        return each.process.wait()
