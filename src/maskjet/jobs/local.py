"""Workers on this machine: one process per device, which processes several segments at a time.

A process that dies, by a signal or by a failing GPU, is restarted, and its segments go to the next free process. Driver
and worker exchange JSON over a socket pair: output on stdout does no harm, and a worker ends when its driver is gone.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from maskjet.errors import DeviceError
from maskjet.host.devices import SEGMENTS_PER_GPU, Place
from maskjet.host.runner import Child, receive
from maskjet.jobs.segments import Segment
from maskjet.jobs.work import TRIES, Outcome, parse_answer

_GLANCE_S = 0.1  # interval of polling the plan while no worker answers
_MOST_DEATHS = TRIES + 2  # consecutive crashes of a worker after which the job ends
_log = logging.getLogger("maskjet")

Task = tuple[str, Segment]

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment of workers on a CPU: rounding of sums depends on the number of threads. Concurrent segments use the cores
instead, which is faster."""


@dataclass(eq=False)
class StartedWorker:
    """Handle of a running worker."""

    place: Place
    """Device and environment of the worker, also for its restarts."""
    handle: Any
    """The `Child` process of a local worker, or the Ray actor."""
    tasks: dict[str, Segment] = field(default_factory=dict)
    """Segments assigned to the worker, by part name."""
    is_ready: bool = True
    """Whether the worker accepts segments."""
    deaths: int = 0
    """Consecutive crashes in this slot without a finished segment."""


class LocalWorkers:
    """One process per place, which processes `streams` segments at a time; orders are `Worker`'s but for these two."""

    _patience_s = math.inf  # time for assigned segments to finish after a stop

    def __init__(self, orders: Mapping[str, Any], places: Sequence[Place], streams: int) -> None:
        self._orders, self._places, self._streams = orders, places, streams
        self._workers: list[StartedWorker] = []
        self._again: deque[Task] = deque()  # segments to retry, of workers that died
        self._deaths = Counter[str]()  # number of worker deaths by part name

    def run(self, tasks: Iterator[Task | None], stop: threading.Event) -> Iterator[Outcome]:
        """Process segments; yields their outcomes in the order in which they finish.

        A task is None while planning has not found the next one. Once `stop` is set, no more segments are assigned, and
        those assigned are finished. Raises the errors of `Worker`, and DeviceError if one dies again and again.
        """
        end, has_more = math.inf, True
        try:
            self._workers = [self._start(place) for place in self._places]
            while (has_more or self._again or any(each.tasks for each in self._workers)) and time.monotonic() < end:
                if stop.is_set():
                    has_more, end = False, min(end, time.monotonic() + self._patience_s)
                    self._again.clear()
                else:
                    has_more = self._feed(tasks)
                yield from self._receive()
        finally:
            self.close()

    def _feed(self, tasks: Iterator[Task | None]) -> bool:
        """Assign segments until each worker has one queued; returns False at the end of the plan."""
        while has_room := list(filter(self._has_room, self._workers)):
            task = self._again.popleft() if self._again else next(tasks, ())
            if not task:
                return task is None
            each, (part, segment) = min(has_room, key=lambda each: len(each.tasks)), task
            each.tasks[part] = segment
            self._send(each, part, segment)
        return True

    def _has_room(self, worker: StartedWorker) -> bool:
        """Whether a worker may get another segment; segments of dead workers run alone, to find the culprit."""
        is_alone = bool(self._again) or any(part in self._deaths for part in worker.tasks)
        return worker.is_ready and len(worker.tasks) <= (0 if is_alone else self._streams)

    def _take(self, worker: StartedWorker, part: str, answer: Mapping[str, Any]) -> Outcome:
        """Decode the outcome in an answer; raises if it is an error."""
        outcome = parse_answer(answer)
        worker.tasks.pop(part, None)
        worker.deaths = 0
        return outcome

    def _replace(self, dead: StartedWorker, why: str) -> Iterator[Outcome]:
        """Restart a dead worker and requeue its segments; yields the outcomes of segments given up."""
        deaths = dead.deaths + 1
        if deaths >= _MOST_DEATHS:
            raise DeviceError(f"{dead.place} died {deaths} times without a result, at last: {why}.", index=0)
        _log.warning("%s died (%s), and is started again.", dead.place, why)
        at = self._workers.index(dead)
        self._workers[at] = self._start(dead.place)
        self._workers[at].deaths = deaths
        for part, segment in dead.tasks.items():
            self._deaths[part] += 1
            if self._deaths[part] < TRIES:
                self._again.append((part, segment))
            else:
                failures = ((segment.name, f"its worker died {TRIES} times"),)
                yield Outcome(part, failures=failures, is_written=False)

    def _send(self, worker: StartedWorker, part: str, segment: Segment) -> None:
        worker.handle.send({"part": part, "segment": asdict(segment), "is_again": part in self._deaths})

    def _receive(self) -> Iterator[Outcome]:
        workers = {each.handle: each for each in self._workers}
        for child, message in receive(workers, _GLANCE_S):
            if message is None:
                yield from self._replace(workers[child], child.end())
            else:
                yield self._take(workers[child], message["part"], message["answer"])

    def _start(self, place: Place) -> StartedWorker:
        variables = {**place.variables, **(ONE_THREAD if place.device == "cpu" else {})}
        orders = {**self._orders, "device": place.own_device, "streams": self._streams}
        return StartedWorker(place, Child.start("maskjet.jobs.worker", orders, variables=variables))

    def close(self) -> None:
        """Kill all processes."""
        for each in self._workers:
            each.handle.process.kill()
        for each in self._workers:
            each.handle.end()
        self._workers = []


def choose_streams(places: Sequence[Place]) -> int:
    """Default number of concurrent segments per process: a share of `SEGMENTS_PER_GPU`, or of the cores."""
    if any(place.device != "cpu" for place in places):
        return max(1, SEGMENTS_PER_GPU // max(Counter(place.device for place in places).values()))
    return max(1, len(os.sched_getaffinity(0)) // len(places))
