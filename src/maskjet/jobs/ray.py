"""Workers on a Ray cluster: actors that process several segments at a time and write the parts.

Only names, segments and counts pass through Ray. An actor that dies is replaced as soon as there is room.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from maskjet.errors import DeviceError, UnsupportedError, first_line
from maskjet.host.devices import Place
from maskjet.jobs import cluster, storage
from maskjet.jobs.local import LocalWorkers, StartedWorker, Task
from maskjet.jobs.segments import Segment
from maskjet.jobs.work import Outcome
from maskjet.jobs.worker import Actor

_ARRIVAL_S = 180.0  # for the first worker process to start
_GLANCE_S = 0.5  # interval of polling the plan and the stop signal without answers
_log = logging.getLogger("maskjet")


class RayWorkers(LocalWorkers):
    """Ray actors with one GPU each, or else a share of the CPUs; see `cluster.connected` and `cluster.fit`."""

    _patience_s = 60.0

    def __init__(self, orders: Mapping[str, Any], address: str, workers: int | None = None) -> None:
        out = orders["out"]
        out = out if storage.is_remote(out) else os.path.abspath(out)  # noqa: PTH100 - actors have another folder
        super().__init__({**orders, "out": out}, [], 1)
        self._address, self._count = address, workers
        # Pending calls: (worker, part name), "" for loading the model, None for the start.
        self._calls: dict[Any, tuple[StartedWorker, str | None]] = {}
        self._arrival: float | None = None  # deadline for the first worker process; None once it started

    def run(self, tasks: Iterator[Task | None], stop: threading.Event) -> Iterator[Outcome]:
        """Process segments, as `LocalWorkers.run` does; raises DeviceError if the cluster fails."""
        with cluster.connected(self._address) as self._ray:
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            self._pool = cluster.fit(nodes, self._orders["settings"]["config"]["device"], self._count)
            self._streams = self._pool.streams
            self._places = [Place(number, self._pool.device, {}) for number in range(self._pool.size)]
            if len(nodes) > 1 and not storage.is_remote(self._orders["out"]):
                shared = f"{self._orders['out']!r} must be a folder that all of them share"
                _log.warning("The cluster has %d nodes: %s, and so must those of local sources.", len(nodes), shared)
            self._arrival = time.monotonic() + _ARRIVAL_S
            try:
                yield from super().run(tasks, stop)
            except self._ray.exceptions.RayError as error:
                raise _failed(error) from error

    def _start(self, place: Place) -> StartedWorker:
        orders = {**self._orders, "device": place.device, "streams": self._streams}
        actor = self._ray.remote(Actor).options(**self._pool.options()).remote(orders)
        worker = StartedWorker(place, actor, is_ready=False)
        self._calls[actor.__ray_ready__.remote()] = worker, None
        self._calls[actor.load.remote()] = worker, ""
        return worker

    def _send(self, worker: StartedWorker, part: str, segment: Segment) -> None:
        self._calls[worker.handle.answer.remote(part, asdict(segment), is_again=part in self._deaths)] = worker, part

    def _receive(self) -> Iterator[Outcome]:
        if self._arrival is not None and time.monotonic() > self._arrival:
            raise self._no_room()
        calls = list(self._calls)
        if not calls:
            time.sleep(_GLANCE_S)
            return
        self._ray.wait(calls, timeout=_GLANCE_S)
        for call in self._ray.wait(calls, num_returns=len(calls), timeout=0)[0]:
            worker, part = self._calls.pop(call)
            if worker not in self._workers:  # the worker was replaced
                continue
            try:
                answer = self._ray.get(call)
            except self._ray.exceptions.RayActorError as error:
                yield from self._replace(worker, first_line(error))
                continue
            self._arrival = None
            if part or (part is not None and answer):  # raises an error of loading the model
                yield self._take(worker, part, answer)
            worker.is_ready |= part is not None

    def close(self) -> None:
        """Kill all actors."""
        for each in self._workers:
            with suppress(Exception):
                self._ray.kill(each.handle)

    def _no_room(self) -> UnsupportedError:
        kind = "GPU" if self._pool.device == "cuda" else "CPU"
        has, free = (found.get(kind, 0) for found in (self._ray.cluster_resources(), self._ray.available_resources()))
        return UnsupportedError(
            f"No worker started within {_ARRIVAL_S:g} s. Each needs a {kind}; the cluster has {has:g}, of "
            f"which {free:g} are free. Wait until other jobs end, or start more nodes; if there is room, Ray's logs "
            "tell why."
        )


def _failed(error: BaseException) -> DeviceError:
    """Shorten Ray's error to one line: the first line names the failure, the last its reason."""
    text = str(error).strip().splitlines()
    why = f" {text[-1].strip()}" if text[1:] else ""
    return DeviceError(f"The Ray cluster failed: {first_line(error)}{why}", index=0)
