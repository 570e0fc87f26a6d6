"""The driver of a job: assigns segments without a part to workers, and records their outcomes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from maskjet.jobs.folders import Folder
from maskjet.jobs.manifest import Failures, Plan
from maskjet.jobs.parts import FOLDER, Parts
from maskjet.jobs.segments import Segment, Settings
from maskjet.jobs.work import Outcome, digest_weights
from maskjet.version import __version__

if TYPE_CHECKING:
    from maskjet.jobs.local import LocalWorkers

_SKIPPED_AT_ONCE = 256  # existing parts per progress report


@dataclass
class Progress:
    """Progress of a run of a job."""

    planned: int = 0
    """Segments found so far."""
    is_planned: bool = False
    """Whether planning is complete."""
    done: int = 0
    """Segments whose part this run has written."""
    skipped: int = 0
    """Segments whose part existed before."""
    failed: int = 0
    """Segments that failed, and so have no part."""
    frames: int = 0
    """Frames in the parts written by this run."""
    detections: int = 0
    """Detections in the parts written by this run."""
    failures: int = 0
    """Files and frames listed in failures.jsonl."""
    seconds: float = 0.0
    """Duration of this run."""

    def take(self, outcome: Outcome) -> None:
        """Count the outcome of a segment."""
        self.done += outcome.is_written
        self.failed += not outcome.is_written
        self.frames += outcome.frames
        self.detections += outcome.detections

    @property
    def is_whole(self) -> bool:
        """Whether each segment has its part and nothing failed."""
        return self.is_planned and not self.failures and self.done + self.skipped == self.planned


def run(
    segments: Iterator[Segment],
    out: str,
    settings: Settings,
    make_workers: Callable[[dict[str, Any]], LocalWorkers],
    stop: threading.Event,
    on_progress: Callable[[Progress], object] = lambda _: None,
) -> Progress:
    """Run a job, or resume it: make the parts that are missing of the segments of `plan`.

    `make_workers` takes the orders of `Worker`. After `stop`, segments that are begun are finished. `on_progress` is
    called after each outcome, and while segments are skipped or awaited. Raises OutputError if the folder can't be
    written to or another job works on it, and the errors of sources and workers.
    """
    began, progress = time.monotonic(), Progress()
    folder, parts = Folder(out), Parts(out)
    with folder.lock():
        folder.clean(FOLDER)
        identity = settings.identity(digest_weights(settings))
        segments = chain([next(segments)], segments)  # errors in the sources are raised before workers start
        failures = Failures(folder)
        with closing(Plan(folder, segments, identity)) as planned:
            facts = {"version": __version__, "settings": identity}
            orders = {"settings": asdict(settings), "out": out, "facts": facts}

            def report() -> None:
                progress.planned, progress.is_planned = planned.planned, planned.is_complete
                progress.failures, progress.seconds = failures.count, time.monotonic() - began
                on_progress(progress)

            pending = _pending(planned, parts, failures, progress, report)
            is_whole = False  # until the plan was read to its end
            try:
                with closing(_outcomes(pending, make_workers, orders, stop)) as outcomes:
                    for outcome in outcomes:
                        failures.take(outcome.part, outcome.failures)
                        progress.take(outcome)
                        report()
                is_whole = planned.is_complete and not stop.is_set()
            finally:
                failures.finish(plan_is_complete=is_whole)
                folder.clean(FOLDER)  # temporary files of killed workers
                report()
    return progress


def _outcomes(
    pending: Iterator[tuple[str, Segment] | None],
    make_workers: Callable[[dict[str, Any]], LocalWorkers],
    orders: dict[str, Any],
    stop: threading.Event,
) -> Generator[Outcome]:
    """Start workers only if a part is missing, so that a finished job returns at once."""
    for first in pending:
        if stop.is_set():
            return
        if first is not None:
            yield from make_workers(orders).run(chain([first], pending), stop)
            return


def _pending(
    planned: Plan, parts: Parts, failures: Failures, progress: Progress, report: Callable[[], None]
) -> Iterator[tuple[str, Segment] | None]:
    """Segments without a part, in the plan's order; None while planning has not found the next one."""
    for task in planned.read():
        if task is not None and parts.had(task[0]):
            progress.skipped += 1
            failures.keep(task[0], parts)
            if progress.skipped % _SKIPPED_AT_ONCE:
                continue
            task = None
        if task is None:
            report()
        yield task
    report()
