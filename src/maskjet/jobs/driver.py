"""Driving a job: what is not done yet is given to workers, and what became of it is written down."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from maskjet.errors import CheckpointError, InputError, explain
from maskjet.jobs.folders import open_folder
from maskjet.jobs.ledger import Failures, Plan
from maskjet.jobs.locks import locked
from maskjet.jobs.markers import Markers
from maskjet.jobs.parts import Parts
from maskjet.jobs.planning import plan
from maskjet.jobs.rows import check_kind
from maskjet.jobs.segments import Segment, Settings
from maskjet.jobs.work import Outcome
from maskjet.networks.exported.metadata import ENGINES, ONNX
from maskjet.version import __version__

_SKIPPED_AT_ONCE = 256  # parts, after which progress is told


@dataclass(frozen=True)
class Job:
    """What is to be done."""

    sources: Sequence[str]
    """Files, folders, globs, lists and URLs; see `plan`."""
    out: str
    """The folder of the results: a path or URL."""
    settings: Settings = field(default_factory=Settings)
    """What is done with each segment."""
    recursive: bool = False
    """Whether sub-folders are searched."""
    seconds: float = 10.0
    """Length of a video's segment."""
    images: int = 64
    """Most images of a segment."""
    verify: bool = False
    """Whether parts that exist are read, and done anew if they are damaged."""
    video_stream: int | None = None
    """Which of a file's video streams is read; see `plan`."""


@dataclass
class Progress:
    """How far a job is."""

    planned: int = 0
    """Segments found so far."""
    is_planned: bool = False
    """Whether all are found."""
    done: int = 0
    """Segments whose part was written."""
    skipped: int = 0
    """Segments whose part was there."""
    failed: int = 0
    """Segments without a part."""
    frames: int = 0
    """Frames in the parts written."""
    detections: int = 0
    """Detections in them."""
    failures: int = 0
    """Files and frames listed in failures.jsonl."""
    damaged: list[tuple[str, str]] = field(default_factory=list)
    """Parts found damaged, each with the reason."""
    seconds: float = 0.0
    """Time since it began."""

    def take(self, outcome: Outcome) -> None:
        """Count what became of a segment."""
        self.done += outcome.is_written
        self.failed += not outcome.is_written
        self.frames += outcome.frames
        self.detections += outcome.detections

    @property
    def is_whole(self) -> bool:
        """Whether each segment has its part, and nothing failed."""
        return self.is_planned and not self.failures and self.done + self.skipped == self.planned


class Workers(Protocol):
    """Work on segments somewhere."""

    def run(self, tasks: Iterator[tuple[str, Segment] | None], stop: threading.Event) -> Iterator[Outcome]:
        """Work on segments; outcomes come as they are ready, in any order.

        Args:
            tasks: Name of the part and segment; None while the next one is not known yet.
            stop: Once it is set, no more segments are begun, and those begun are finished.
        """


def run(
    job: Job,
    make_workers: Callable[[dict[str, Any]], Workers],
    stop: threading.Event,
    on_progress: Callable[[Progress], object] = lambda _: None,
) -> Progress:
    """Do a job, or what is left of it.

    Args:
        job: What is to be done.
        make_workers: Makes the workers; given what each needs to know, in JSON types: settings, out, facts, run.
        stop: Ends the job early; what is being worked on is finished.
        on_progress: Called after each step.

    Raises:
        OutputError: The folder can't be written to, or another job has it.
        MaskjetError: A source does not exist, or workers can't begin.
    """
    began, progress = time.monotonic(), Progress()
    folder, parts = open_folder(job.out), Parts(job.out)
    markers = Markers(folder)
    with locked(folder) as check_lock:
        parts.clean()
        failures = Failures(folder)
        identity = job.settings.identity(_digest_of_weights(job.settings))
        segments = plan(
            job.sources,
            recursive=job.recursive,
            seconds=job.seconds,
            images=job.images,
            video_stream=job.video_stream,
        )
        segments = chain([next(segments)], segments)  # what is wrong with the sources is told before anything begins
        with closing(Plan(folder, segments, identity)) as planned:
            facts = {"version": __version__, "settings": identity}
            orders = {"settings": job.settings.as_dict(), "out": job.out, "facts": facts, "run": markers.start_run()}

            def tell() -> None:
                check_lock()
                progress.planned, progress.is_planned = planned.planned, planned.is_complete
                progress.failures, progress.seconds = failures.count, time.monotonic() - began
                on_progress(progress)

            left = _left(planned, parts, failures, progress, tell, verify=job.verify)
            try:
                with closing(_outcomes(left, make_workers, orders, stop)) as outcomes:
                    for outcome in outcomes:
                        failures.take(outcome.part, outcome.failures)
                        progress.take(outcome)
                        tell()
            finally:
                check_lock()
                failures.finish(plan_is_complete=planned.is_complete and not stop.is_set())
                parts.clean()  # of workers that were killed
                markers.clear()
                tell()
    return progress


def _outcomes(
    left: Iterator[tuple[str, Segment] | None],
    make_workers: Callable[[dict[str, Any]], Workers],
    orders: dict[str, Any],
    stop: threading.Event,
) -> Generator[Outcome]:
    """Begin workers only if there is work: a job that is done is seen to be so at once."""
    for first in left:
        if stop.is_set():
            return
        if first is not None:
            yield from make_workers(orders).run(chain([first], left), stop)
            return


def _left(
    planned: Plan,
    parts: Parts,
    failures: Failures,
    progress: Progress,
    tell: Callable[[], None],
    *,
    verify: bool,
) -> Iterator[tuple[str, Segment] | None]:
    """Segments without a part, in the plan's order; None while the next one is not known yet."""
    for task in planned.read():
        if task is not None and parts.existing([task[0]]):
            if damaged := list(parts.verify([task[0]])) if verify else []:
                progress.damaged += damaged
                parts.remove(task[0])
            else:
                progress.skipped += 1
                failures.keep(task[0])
                if progress.skipped % _SKIPPED_AT_ONCE:
                    continue
                task = None
        if task is None:
            tell()
        yield task
    tell()


def _digest_of_weights(settings: Settings) -> str | None:
    """A digest of the model's file, or files; None if maskjet has the weights itself."""
    weights = settings.weights
    if weights is None:
        if not Path(settings.model).is_file():
            return None
        weights = settings.model
    digests = []
    for path in _files_of(Path(weights)):
        try:
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest())
        except OSError as error:
            raise CheckpointError(f"weights must be a file, {str(path)!r} can't be read: {explain(error)}.") from error
    return digests[0] if len(digests) == 1 else hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()


def _files_of(weights: Path) -> Sequence[Path]:
    """The files that a model consists of: an exported one may have its weights in others."""
    if weights.suffix not in (ONNX, *ENGINES):
        return [weights]
    from maskjet.networks.exported.network_file import read_network_file

    return read_network_file(weights).files


def check(job: Job) -> None:
    """Check a job's numbers.

    Raises:
        InputError: One is out of range.
    """
    if not 0 < job.seconds < float("inf"):
        raise InputError(f"segment_seconds must be more than 0, got {job.seconds}.")
    for name, value in (("segment_images", job.images), ("every", job.settings.every)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}.")
    check_kind(job.settings.rows)
