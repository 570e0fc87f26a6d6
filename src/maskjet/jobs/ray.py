"""Workers on a Ray cluster: Ray Data pipelines of segments, whose actors write the parts themselves.

Through Ray go the names of parts, segments in JSON, and counts; no pixels and no tables. A Ray Data pipeline has a
fixed input and its own actors, each of which loads the model. So the plan is taken in windows, each of which is one
pipeline: the first has what is found within seconds, so that work begins while planning goes on; the next ones are so
large that loading the model again takes a few per cent of their time, and yet bounded, so that millions of segments
are never in memory.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from maskjet import limits, process
from maskjet.errors import DeviceError, MaskjetError, UnsupportedError, first_line
from maskjet.jobs import cluster, storage
from maskjet.jobs.cluster import Pool
from maskjet.jobs.desk import Desk
from maskjet.jobs.local import error_of
from maskjet.jobs.segments import Segment
from maskjet.jobs.work import TRIES, Outcome, Worker
from maskjet.version import __version__

if TYPE_CHECKING:
    import pyarrow
    import ray.data

_FIRST_S = 2.0  # for which the first window waits for the plan
_WINDOW, _LARGEST_WINDOW = 4_000, 100_000  # segments: per worker, and of all; each takes 1 kB of the driver
_BLOCKS, _LARGEST_BLOCK = 32, 16  # blocks per worker and lane, if there are enough segments; most segments of one
_GLANCE_S = 0.5  # how often the desk is asked while nothing comes
_PATIENCE_S = 60.0  # for segments that are worked on when a job is stopped
_GOODBYE_S = 5.0  # for a pipeline to end
_FAILED = 5  # exit code of a worker whose device failed
_log = logging.getLogger("maskjet")

Task = tuple[str, Segment]


class RayWorkers:
    """Actors on a Ray cluster, one GPU each, or else shares of its CPUs.

    Args:
        orders: What each worker needs besides its device, in JSON types.
        address: The cluster's; see `cluster.connected`.
        workers: How many; None is one per GPU, or else one per node.
        arrival_s: How long to wait for the first worker's process.
    """

    def __init__(
        self, orders: Mapping[str, Any], address: str, workers: int | None = None, *, arrival_s: float = 180.0
    ) -> None:
        out = orders["out"]
        out = out if storage.is_remote(out) else os.path.abspath(out)  # noqa: PTH100 - actors have another folder
        self._orders = {**orders, "out": out}
        self._address, self._workers, self._arrival_s = address, workers, arrival_s

    def run(self, tasks: Iterator[Task | None], stop: threading.Event) -> Iterator[Outcome]:
        """Work on segments; outcomes come as they are ready, in any order.

        Args:
            tasks: Name of the part and segment; None while the next one is not known yet.
            stop: Once it is set, no more segments are begun, and those begun are finished.

        Raises:
            UnsupportedError: The cluster does not answer, has no room for the workers, or they do not begin.
            DeviceError: Workers died again and again, or the cluster failed.
            MaskjetError: A worker can't begin, or a part can't be written; see `Worker`.
        """
        with cluster.connected(self._address) as ray:
            nodes = cluster.nodes_of(ray)
            pool = cluster.fit(nodes, self._orders["settings"]["config"]["device"], self._workers)
            if len(nodes) > 1 and not storage.is_remote(self._orders["out"]):
                _log.warning(
                    "The cluster has %d nodes: %r must be a folder that all of them share, and so must those of local "
                    "sources.",
                    len(nodes),
                    self._orders["out"],
                )
            try:
                for window in _windows(tasks, stop, min(_WINDOW * pool.size, _LARGEST_WINDOW)):
                    yield from self._work(ray, pool, window, stop)
            except ray.exceptions.RayError as error:
                raise _failed(error) from error

    def _work(self, ray: Any, pool: Pool, window: Sequence[Task], stop: threading.Event) -> Iterator[Outcome]:
        desk = _desk(ray)
        rows = _Rows(_pipeline(ray, pool, window, {**self._orders, "device": pool.device, "lanes": pool.lanes}, desk))
        began, seen, is_over = time.monotonic(), set[str](), False
        try:
            while not is_over:
                came, is_over = rows.take(_GLANCE_S)
                if stop.is_set():
                    came, is_over = _last(ray, desk), True
                yield from _new(came, seen)
                if came and not is_over:
                    continue
                state = ray.get(desk.state.remote())
                if state["error"] is not None:
                    raise error_of(state["error"])
                if rows.error is not None:
                    raise _failed(rows.error) from rows.error
                if not is_over and not state["arrived"] and time.monotonic() - began > self._arrival_s:
                    raise _no_room(ray, pool, self._arrival_s)
        finally:
            desk.stop.remote()
            rows.close()


class _Actor:
    """An actor of `RayWorkers`: turns segments into parts, after asking the desk.

    It raises nothing. What fails is told to the desk, which lets nothing begin any more, and the rows that remain are
    empty: Ray would log each error, wrap it, and go on with what other actors have begun.
    """

    def __init__(self, orders: Mapping[str, Any], desk: Any) -> None:
        import ray

        self._wait, self._desk, self._lanes = ray.get, desk, _Lanes()
        self._wait(desk.arrive.remote())
        process.suit_program()
        self._resources = ExitStack()
        self._resources.enter_context(process.garbage_frozen())
        with self._telling("a worker"):
            if orders["facts"]["version"] != __version__:
                raise UnsupportedError(
                    f"maskjet must be of one version on all nodes, got {__version__} beside the driver's "
                    f"{orders['facts']['version']}."
                )
            limits.read_environment()
            self._worker = Worker(orders)

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        import pyarrow

        (row,) = batch.to_pylist()
        return pyarrow.table({"outcome": [self._outcome(row["part"], Segment.from_dict(json.loads(row["segment"])))]})

    def _outcome(self, part: str, segment: Segment) -> str:
        with self._lanes.shared():
            answer, known = self._begin(part, segment, is_alone=False)
            if answer == "work":
                return self._work(part, segment)
        if answer == "alone":
            with self._lanes.alone():
                answer, known = self._begin(part, segment, is_alone=True)
                if answer == "work":
                    return self._work(part, segment)
        return known

    def _begin(self, part: str, segment: Segment, *, is_alone: bool) -> tuple[str, str]:
        answer, known = self._wait(self._desk.begin.remote(part, segment.name, is_alone=is_alone))
        return answer, known

    def _work(self, part: str, segment: Segment) -> str:
        outcome = ""
        with self._telling(segment.name):
            try:
                outcome = json.dumps(self._worker.do(part, segment).as_dict())
            except DeviceError as error:  # nothing runs on it any more: Ray starts another process
                _log.warning("%s", first_line(error))
                os._exit(_FAILED)
        self._wait(self._desk.end.remote(part, outcome))
        return outcome

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Tell the desk of an error."""
        try:
            yield
        except MaskjetError as error:
            self._wait(self._desk.fail.remote(type(error).__name__, str(error)))
        except Exception as error:  # a foreign library's
            self._wait(self._desk.fail.remote("MaskjetError", f"{name} failed: {error!r}."))


class _Lanes:
    """Lets the threads of an actor work side by side, or one of them alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = self._waiting = 0  # the second: to be alone

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Work beside others; those that wait to be alone go first."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work alone."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._working)
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._waiting -= 1
                self._changed.notify_all()


class _Rows:
    """The rows of a dataset, read in a thread, so that waiting for them can end.

    Args:
        dataset: Has one column, outcome.
    """

    def __init__(self, dataset: ray.data.Dataset) -> None:
        self.error: BaseException | None = None
        """Why reading ended, if it failed."""
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, args=[dataset], name="maskjet-ray", daemon=True)
        self._thread.start()

    def _read(self, dataset: ray.data.Dataset) -> None:
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for text in batch["outcome"].to_pylist():  # type: ignore[union-attr]
                    self._queue.put(text)
                if self._is_closed:
                    return
        except BaseException as error:  # told where the rows are taken
            self.error = error
        finally:
            self._queue.put(None)

    def take(self, patience_s: float) -> tuple[list[str], bool]:
        """The rows that have come, after waiting for the first one; and whether they are the last."""
        came = []
        with suppress(queue.Empty):
            text = self._queue.get(timeout=patience_s)
            while text is not None:
                came.append(text)
                text = self._queue.get_nowait()
            return came, True
        return came, False

    def close(self) -> None:
        """Read no more.

        Once the desk lets nothing begin, rows come fast, and the actors end with the thread. Where no actor runs, as no
        node has room, the thread goes on until one does, or until the connection to the cluster ends.
        """
        self._is_closed = True
        self._thread.join(_GOODBYE_S)


def _desk(ray: Any) -> Any:
    """An actor of `Desk` on the driver's node, if there is room: no spot machine that goes away takes it along."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
    return ray.remote(Desk).options(**options).remote(TRIES)


def _pipeline(ray: Any, pool: Pool, window: Sequence[Task], orders: Mapping[str, Any], desk: Any) -> ray.data.Dataset:
    """A dataset of outcomes, a row for each segment. Ray Data restarts actors and repeats their tasks without limit."""
    of_block = max(1, min(_LARGEST_BLOCK, len(window) // (pool.size * pool.lanes * _BLOCKS)))
    items = [{"part": part, "segment": json.dumps(segment.as_dict())} for part, segment in window]
    source = ray.data.from_items(items, override_num_blocks=-(-len(items) // of_block))
    dataset = source.map_batches(
        _Actor,
        batch_size=1,
        batch_format="pyarrow",
        fn_constructor_kwargs={"orders": orders, "desk": desk},
        **pool.options(ray),
    )
    dataset.context.enable_progress_bars = False
    dataset.context.target_max_block_size = 1  # each row is handed on at once
    return dataset  # type: ignore[no-any-return]


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


def _new(texts: Iterable[str], seen: set[str]) -> Iterator[Outcome]:
    """Outcomes that have not been seen; those of segments that were not begun are empty."""
    for text in texts:
        if text:
            outcome = Outcome.from_dict(json.loads(text))
            if outcome.part not in seen:
                seen.add(outcome.part)
                yield outcome


def _last(ray: Any, desk: Any) -> list[str]:
    """Let no more segments begin, wait for those begun, and return all that was done."""
    ray.get(desk.stop.remote())
    deadline = time.monotonic() + _PATIENCE_S
    while ray.get(desk.state.remote())["busy"] and time.monotonic() < deadline:
        time.sleep(_GLANCE_S)
    return list(ray.get(desk.outcomes.remote()))


def _no_room(ray: Any, pool: Pool, waited_s: float) -> UnsupportedError:
    kind, each = ("GPU", pool.num_gpus) if pool.num_gpus else ("CPU", pool.num_cpus)
    return UnsupportedError(
        f"No worker began within {waited_s:g} s. Each needs {each:g} {kind}s; the cluster has "
        f"{ray.cluster_resources().get(kind, 0):g}, of which {ray.available_resources().get(kind, 0):g} are free. Wait "
        "until other jobs end, or start more nodes; if there is room, Ray's logs tell why."
    )


def _failed(error: BaseException) -> DeviceError:
    """Ray's error in one line: the first, which says what failed, and the last, which says why after a traceback."""
    text = str(error).strip().splitlines()
    why = f" {text[-1].strip()}" if text[1:] else ""
    return DeviceError(f"The Ray cluster failed: {first_line(error)}{why}", index=0)
