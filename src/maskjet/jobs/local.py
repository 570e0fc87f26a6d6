"""Workers on this machine: a process for each device, which works on several segments at a time.

A process that dies, by a signal or by a failing GPU, is started again, and its segments are given to the next one that
is free. Driver and worker speak lines of JSON over a socket of their own: whatever else is printed does no harm, and a
worker whose driver is gone ends.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from maskjet.devices import SEGMENTS_PER_GPU, Place
from maskjet.errors import DeviceError
from maskjet.jobs.markers import TRIES
from maskjet.jobs.segments import Segment
from maskjet.jobs.work import Outcome, taken

_GLANCE_S = 0.1  # how often the plan is looked at while nothing comes
_MOST_DEATHS = TRIES + 2  # in a row, without one segment done, after which a device is given up
_PATIENCE_S = 5.0  # for a process to end
_log = logging.getLogger("maskjet")

Task = tuple[str, Segment]

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""For processes on a CPU: sums of several threads are rounded otherwise, so results would depend on how many there are.
Segments that are worked on side by side take the cores instead, and faster."""


@dataclass
class _Process:
    """A worker's process."""

    place: Place
    process: subprocess.Popen[bytes]
    connection: Connection
    tasks: dict[str, Segment] = field(default_factory=dict)
    """What it works on."""
    is_ready: bool = False


class LocalWorkers:
    """Processes on this machine's devices.

    Args:
        orders: What `worker.main` needs besides its device, in JSON types.
        places: The devices.
        streams: Segments that a process works on at a time.
    """

    def __init__(self, orders: Mapping[str, Any], places: Sequence[Place], streams: int) -> None:
        self._orders, self._places, self._streams = orders, places, streams
        self._processes: list[_Process] = []
        self._again: deque[Task] = deque()  # of processes that died
        self._deaths: dict[int, int] = {}  # of a place, in a row

    def run(self, tasks: Iterator[Task | None], stop: threading.Event) -> Iterator[Outcome]:
        """Work on segments; see `driver.Workers`.

        Raises:
            MaskjetError: A worker can't begin, or a part can't be written; see `Worker`.
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
        """Give segments to processes that have room; returns whether there may be more than those."""
        # One more than it works on, so that it need not wait for this process.
        while has_room := [each for each in self._processes if len(each.tasks) <= self._streams]:
            task = self._again.popleft() if self._again else next(tasks, ())
            if not task:
                return task is None
            each = min(has_room, key=lambda each: len(each.tasks))
            part, segment = task
            each.tasks[part] = segment
            with suppress(OSError):  # a process that has died is noticed when it is listened to
                each.connection.send_bytes(json.dumps({"part": part, "segment": segment.as_dict()}).encode())
        return True

    def _receive(self) -> Iterator[Outcome]:
        by_connection: dict[Any, _Process] = {each.connection: each for each in self._processes}
        for connection in wait(list(by_connection), _GLANCE_S):
            each = by_connection[connection]
            try:
                message = json.loads(each.connection.recv_bytes())
            except (EOFError, OSError):
                self._replace(each)
                continue
            outcome = taken(message["answer"])
            each.is_ready = True
            each.tasks.pop(message["part"], None)
            if outcome is not None:
                if not outcome.is_lost:
                    self._deaths.pop(each.place.number, None)
                yield outcome

    def _replace(self, dead: _Process) -> None:
        """Start a process again, and hand on the segments that it had."""
        shown = _shown(_end(dead))
        deaths = self._deaths[dead.place.number] = self._deaths.get(dead.place.number, 0) + 1
        if not dead.is_ready or deaths >= _MOST_DEATHS:
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
        connection.send_bytes(json.dumps(orders).encode())
        return _Process(place, process, connection)

    def close(self) -> None:
        """End all processes; parts that are being written are dropped."""
        for each in self._processes:
            each.process.kill()
        for each in self._processes:
            _end(each)
        self._processes = []


def choose_streams(places: Sequence[Place]) -> int:
    """Segments that each of these processes works on at a time: on a CPU its share of the cores."""
    if any(place.device != "cpu" for place in places):
        return SEGMENTS_PER_GPU
    return max(1, len(os.sched_getaffinity(0)) // len(places))


def _end(each: _Process) -> int:
    """Wait for a process whose connection is closed, and return its exit code."""
    each.connection.close()
    try:
        return each.process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        each.process.kill()
        return each.process.wait()


def _shown(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
