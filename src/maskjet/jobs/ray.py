"""Workers on a Ray cluster: Ray Data pipelines of segments, whose actors write the parts themselves.

Through Ray go names, segments in JSON, and counts. A pipeline has a fixed input and its own actors, each of which loads
the model. So the plan is taken in windows: the first has what is found within seconds, so that work begins while
planning goes on; the next are so large that loading takes a few per cent of their time, and yet fit into memory.
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
from maskjet.jobs.markers import ARRIVED, TRIES, Markers, under_way
from maskjet.jobs.parts import Parts
from maskjet.jobs.work import Outcome, outcome_of, taken
from maskjet.jobs.worker import Actor

_ARRIVAL_S = 180.0  # for the first worker's process
_FIRST_S = 2.0  # for which the first window waits for the plan
_WINDOW, _LARGEST_WINDOW = 4_000, 100_000  # segments: per worker, and of all; each takes 1 kB of the driver
_BLOCKS, _LARGEST_BLOCK = 32, 16  # blocks per worker and stream, if there are enough segments; most segments of one
_MOST_LOST = 3  # segments given up in a row, without one done, after which the cluster's devices are to blame
_GLANCE_S = 0.5  # how often it is looked whether to stop, while nothing comes
_PATIENCE_S = 60.0  # for segments that are worked on when a job is stopped
_GOODBYE_S = 5.0  # for a pipeline to end
_log = logging.getLogger("maskjet")


class RayWorkers:
    """Actors on a Ray cluster, one GPU each, or else shares of its CPUs.

    Args:
        orders: What each worker needs besides its device, in JSON types.
        address: The cluster's; see `cluster.connected`.
        workers: How many; None is one per GPU, or else one per node.
    """

    def __init__(self, orders: Mapping[str, Any], address: str, workers: int | None = None) -> None:
        out = orders["out"]
        out = out if storage.is_remote(out) else os.path.abspath(out)  # noqa: PTH100 - actors have another folder
        self._orders, self._markers = {**orders, "out": out}, Markers(open_folder(out))
        self._address, self._workers = address, workers

    def run(self, tasks: Iterator[Task | None], stop: threading.Event) -> Iterator[Outcome]:
        """Work on segments; see `driver.Workers`.

        Raises:
            UnsupportedError: The cluster does not answer, has no room for the workers, or they do not begin.
            DeviceError: Workers died again and again, or the cluster failed.
            MaskjetError: A worker can't begin, or a part can't be written; see `Worker`.
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
        rows = _Rows(_pipeline(ray, pool, window, {**self._orders, "device": pool.device, "streams": pool.streams}))
        left, lost, deadline = dict(window), 0, time.monotonic() + _ARRIVAL_S
        is_over = is_stopped = False
        try:
            while not is_over and not is_stopped:
                if is_stopped := stop.is_set():
                    self._wait_for_begun()
                answers, is_over = rows.take()
                for outcome in filter(None, map(taken, answers)):
                    left.pop(outcome.part, None)
                    yield outcome
                    lost = (lost + 1) * outcome.is_lost
                    if lost == _MOST_LOST:
                        raise DeviceError(f"Workers died {TRIES} times on {lost} segments in a row.", index=0)
                if time.monotonic() > deadline:
                    deadline = float("inf")
                    if ARRIVED not in self._markers.names():
                        raise _no_room(ray, pool)
            if is_stopped:  # some are done whose rows are on their way
                parts = Parts(self._orders["out"])
                for part in parts.existing(left):
                    yield outcome_of(part, left[part], parts.about(part))
        finally:
            if not is_over:
                self._markers.remove(self._orders["run"])
            rows.close()

    def _wait_for_begun(self) -> None:
        """Let no more segments begin, and wait for those that workers are at."""
        self._markers.remove(self._orders["run"])
        for _ in range(round(_PATIENCE_S / _GLANCE_S)):
            time.sleep(_GLANCE_S)  # first for workers that are about to begin
            if not under_way(self._markers.names()):
                return


class _Rows:
    """The answers of a dataset, read in a thread, so that waiting for them can end."""

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
        except BaseException as error:  # raised where the rows are taken
            self._queue.put(error)

    def take(self) -> tuple[list[dict[str, Any]], bool]:
        """The answers that have come, after waiting a little for the first one; and whether they are the last."""
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
        """Read no more. Actors end with the last row, which comes fast once nothing begins; or else with the next."""
        self._thread.join(_GOODBYE_S)
        self._is_closed = True
        self._thread.join(_GOODBYE_S)


def _pipeline(ray: Any, pool: cluster.Pool, window: Sequence[Task], orders: Mapping[str, Any]) -> Any:
    """A dataset of answers, a row for each segment. Ray Data restarts actors and repeats their tasks without limit."""
    of_block = max(1, min(_LARGEST_BLOCK, len(window) // (pool.size * pool.streams * _BLOCKS)))
    items = [{"part": part, "segment": json.dumps(segment.as_dict())} for part, segment in window]
    source = ray.data.from_items(items, override_num_blocks=-(-len(items) // of_block))
    dataset = source.map_batches(
        Actor, batch_size=1, batch_format="pyarrow", fn_constructor_kwargs={"orders": orders}, **pool.options(ray)
    )
    dataset.context.enable_progress_bars = False
    dataset.context.target_max_block_size = 1  # each row is handed on at once
    return dataset


def _windows(tasks: Iterable[Task | None], stop: threading.Event, largest: int) -> Iterator[list[Task]]:
    """Segments by windows; the first ends soon, others when they are full or wait for the plan, or at its end."""
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
        f"No worker began within {_ARRIVAL_S:g} s. Each needs {each:g} {kind}s; the cluster has "
        f"{ray.cluster_resources().get(kind, 0):g}, of which {ray.available_resources().get(kind, 0):g} are free. Wait "
        "until other jobs end, or start more nodes; if there is room, Ray's logs tell why."
    )


def _failed(error: BaseException) -> DeviceError:
    """Ray's error in one line: the first, which says what failed, and the last, which says why after a traceback."""
    text = str(error).strip().splitlines()
    why = f" {text[-1].strip()}" if text[1:] else ""
    return DeviceError(f"The Ray cluster failed: {first_line(error)}{why}", index=0)
