"""Workers on a Ray cluster: Ray Data pipelines of segments, whose actors write the parts themselves.

Only names, segments in JSON and counts pass through Ray. A pipeline has a fixed input and its own actors, each of which
loads the model. So the plan is cut into windows, a pipeline each: the first closes within seconds, so that work begins
during planning; later ones fit into memory, and are so large that loading takes a few per cent of their time.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from maskjet.errors import DeviceError, UnsupportedError, first_line
from maskjet.jobs import cluster, storage
from maskjet.jobs.folders import open_folder
from maskjet.jobs.local import Task
from maskjet.jobs.markers import ARRIVED, STOPPING, TRIES, Markers, under_way
from maskjet.jobs.parts import Parts
from maskjet.jobs.work import Outcome, outcome_of, parse_answer
from maskjet.jobs.worker import Actor

_ARRIVAL_S = 180.0  # for the first worker process to start
_FIRST_S = 2.0  # from its first segment until the first window closes
_WINDOW, _LARGEST_WINDOW = 4_000, 100_000  # segments per worker, and in all; each takes 1 kB of the driver's memory
_BLOCKS, _LARGEST_BLOCK = 32, 16  # blocks per worker and stream, if segments suffice; segments per block
_MOST_LOST = 3  # segments given up in a row, after which the job ends
_GLANCE_S = 0.5  # polling interval of the stop signal while no answer comes
_PATIENCE_S = 60.0  # for segments under way when a job is stopped
_GOODBYE_S = 5.0  # for the thread that reads a pipeline to end
_log = logging.getLogger("maskjet")


class RayWorkers:
    """Actors on a Ray cluster, one GPU each, or else shares of its CPUs.

    Args:
        orders: Orders of `Worker` but for device and streams.
        address: The cluster's; see `cluster.connected`.
        workers: Number of workers; None is one per GPU, or else one per node.
    """

    def __init__(self, orders: Mapping[str, Any], address: str, workers: int | None = None) -> None:
        out = orders["out"]
        out = out if storage.is_remote(out) else os.path.abspath(out)  # noqa: PTH100 - actors have another folder
        self._orders, self._markers = {**orders, "out": out}, Markers(open_folder(out), orders["run"])
        self._address, self._workers = address, workers

    def run(self, tasks: Iterator[Task | None], stop: threading.Event) -> Iterator[Outcome]:
        """Process segments; see `driver.Workers.run`.

        Raises:
            UnsupportedError: The cluster does not answer, has no room for the workers, or they do not start.
            DeviceError: Workers died again and again, or the cluster failed.
            MaskjetError: A worker can't start, or a part can't be written; see `Worker`.
        """
        with cluster.connected(self._address) as ray:
            nodes = cluster.nodes_of(ray)
            pool = cluster.fit(nodes, self._orders["settings"]["config"]["device"], self._workers)
            if len(nodes) > 1 and not storage.is_remote(self._orders["out"]):
                shared = f"{self._orders['out']!r} must be a folder that all of them share"
                _log.warning("The cluster has %d nodes: %s, and so must those of local sources.", len(nodes), shared)
            try:
                for window in _windows(tasks, stop, min(_WINDOW * pool.size, _LARGEST_WINDOW)):
                    yield from self._work(ray, pool, window, stop)
            except ray.exceptions.RayError as error:
                raise _failed(error) from error

    def _work(self, ray: Any, pool: cluster.Pool, window: Sequence[Task], stop: threading.Event) -> Iterator[Outcome]:
        self._markers.remove(ARRIVED)
        orders = {**self._orders, "device": pool.device, "streams": pool.streams}
        reader = _Answers(_pipeline(ray, pool, window, orders))
        left, lost, deadline = dict(window), 0, time.monotonic() + _ARRIVAL_S
        is_over = is_stopped = False
        try:
            while not is_over and not is_stopped:
                if is_stopped := stop.is_set():
                    self._drain()
                answers, is_over = reader.take()
                for outcome in filter(None, map(parse_answer, answers)):
                    left.pop(outcome.part, None)
                    yield outcome
                    lost = (lost + 1) * outcome.is_lost
                    if lost == _MOST_LOST:
                        raise DeviceError(f"Workers died {TRIES} times on {lost} segments in a row.", index=0)
                if time.monotonic() > deadline:
                    deadline = float("inf")
                    if ARRIVED not in self._markers.names():
                        raise _no_room(ray, pool)
            if is_stopped:  # some may have their part, though no answer has come
                parts = Parts(self._orders["out"])
                for part in filter(parts.had, left):
                    yield outcome_of(part, left[part], parts.about(part))
        finally:
            if not is_over:
                self._markers.put(STOPPING)
            reader.close()

    def _drain(self) -> None:
        """Stop scheduling, and wait for segments under way, up to a minute."""
        self._markers.put(STOPPING)
        for _ in range(round(_PATIENCE_S / _GLANCE_S)):
            time.sleep(_GLANCE_S)  # first for workers that are about to begin
            if not under_way(self._markers.names()):
                return


class _Answers:
    """Reads a dataset's answers in a thread, so that waiting for them can be interrupted."""

    def __init__(self, dataset: Any) -> None:
        self._queue: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, args=[dataset], name="maskjet-ray", daemon=True)
        self._thread.start()

    def _read(self, dataset: Any) -> None:
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for text in batch["answer"].to_pylist():
                    self._queue.put(text)
                if self._is_closed:
                    return
            self._queue.put(None)
        except BaseException as error:  # raised by `take`
            self._queue.put(error)

    def take(self) -> tuple[list[dict[str, Any]], bool]:
        """Wait half a second for an answer; returns all that have come, and whether they are the last."""
        answers = []
        with suppress(queue.Empty):
            row = self._queue.get(timeout=_GLANCE_S)
            while isinstance(row, str):
                answers.append(json.loads(row))
                row = self._queue.get_nowait()
            if row is not None:
                raise _failed(row) from row
            return answers, True
        return answers, False

    def close(self) -> None:
        """Stop reading: after the last row, which comes soon once no segment begins, or else after the next."""
        self._thread.join(_GOODBYE_S)
        self._is_closed = True
        self._thread.join(_GOODBYE_S)


def _pipeline(ray: Any, pool: cluster.Pool, window: Sequence[Task], orders: Mapping[str, Any]) -> Any:
    """A Ray dataset with an answer per segment; Ray Data restarts actors and retries their tasks without limit."""
    of_block = max(1, min(_LARGEST_BLOCK, len(window) // (pool.size * pool.streams * _BLOCKS)))
    items = [{"part": part, "segment": json.dumps(segment.as_dict())} for part, segment in window]
    source = ray.data.from_items(items, override_num_blocks=-(-len(items) // of_block))
    dataset = source.map_batches(
        Actor, batch_size=1, batch_format="pyarrow", fn_constructor_kwargs={"orders": orders}, **pool.options(ray)
    )
    dataset.context.enable_progress_bars = False
    dataset.context.target_max_block_size = 1  # yield each row at once
    return dataset


def _windows(tasks: Iterable[Task | None], stop: threading.Event, largest: int) -> Iterator[list[Task]]:
    """Group segments into windows: the first closes after 2 s, others when full or when planning is slower."""
    window: list[Task] = []
    began, is_first = 0.0, True
    for task in tasks:
        if stop.is_set():
            return
        if task is not None:
            began = began if window else time.monotonic()
            window.append(task)
        is_late = window and time.monotonic() - began >= _FIRST_S
        if len(window) == largest or (is_late and (is_first or task is None)):
            yield window
            window, is_first = [], False
    if window and not stop.is_set():
        yield window


def _no_room(ray: Any, pool: cluster.Pool) -> UnsupportedError:
    kind, each = ("GPU", 1) if pool.device == "cuda" else ("CPU", pool.num_cpus)
    return UnsupportedError(
        f"No worker started within {_ARRIVAL_S:g} s. Each needs {each:g} {kind}s; the cluster has "
        f"{ray.cluster_resources().get(kind, 0):g}, of which {ray.available_resources().get(kind, 0):g} are free. Wait "
        "until other jobs end, or start more nodes; if there is room, Ray's logs tell why."
    )


def _failed(error: BaseException) -> DeviceError:
    """Ray's error as one line: its first line says what failed, its last one, after a traceback, why."""
    text = str(error).strip().splitlines()
    why = f" {text[-1].strip()}" if text[1:] else ""
    return DeviceError(f"The Ray cluster failed: {first_line(error)}{why}", index=0)
