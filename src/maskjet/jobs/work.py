"""What a worker does: detect on a segment, write its part, try again where that may help."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from maskjet import errors
from maskjet.config import EngineConfig
from maskjet.errors import DeviceError, MaskjetError, OutputError, UnsupportedError, first_line
from maskjet.jobs.folders import open_folder
from maskjet.jobs.ledger import note_failures
from maskjet.jobs.markers import TRIES, Markers, of_segment
from maskjet.jobs.parts import Parts
from maskjet.jobs.processing import process
from maskjet.jobs.rows import metadata, with_metadata
from maskjet.jobs.segments import Segment, Settings
from maskjet.version import __version__

if TYPE_CHECKING:
    import pyarrow

    from maskjet.model import Model

FAILED = 5
"""Exit code of a worker whose device failed."""
_log = logging.getLogger("maskjet")


@dataclass(frozen=True)
class Outcome:
    """What became of a segment."""

    part: str
    """Name of its part."""
    frames: int = 0
    """Frames in it."""
    detections: int = 0
    """Detections in it."""
    failures: Sequence[tuple[str, str]] = ()
    """Files or frames that could not be used, each with the reason."""
    is_written: bool = True
    """Whether there is a part; else the whole segment failed."""
    is_lost: bool = False
    """Whether it failed because each worker that began it died."""


def outcome_of(part: str, segment: Segment, about: Mapping[str, Any]) -> Outcome:
    """The outcome of a segment that has its part, from the metadata of this."""
    failures = tuple(
        (f"{segment.files[0].path}#{what}" if segment.is_video else str(what), reason)
        for what, reason in about["bad_frames"]
    )
    return Outcome(part, about["frames"], about["detections"], failures)


def open_model(settings: Settings, config: EngineConfig) -> Model:
    """Load the model that settings name.

    Args:
        settings: What is done with each segment.
        config: How to run it, with the worker's own device.

    Raises:
        InputError, CheckpointError, UnsupportedError: As `maskjet.load`.
    """
    from maskjet.model import load_configured

    threshold, by_class = settings.threshold, settings.class_thresholds
    return load_configured(
        settings.model, settings.weights, config, threshold=threshold, by_class=by_class, classes=settings.classes
    )


class Worker:
    """Turns segments into parts. May be called from several threads.

    Args:
        orders: In JSON types: settings, what is done with each segment; device, the worker's own; streams, how many
            segments it works on at a time; out, where the parts go; facts, what is written into each part's metadata
            besides its segment; run, the marker without which it begins none.

    Raises:
        InputError, CheckpointError, UnsupportedError: As `maskjet.load`; or the driver is of another version.
    """

    def __init__(self, orders: Mapping[str, Any]) -> None:
        self._settings = Settings.from_dict(orders["settings"])
        self._streams, self._facts = int(orders["streams"]), orders["facts"]
        if self._facts["version"] != __version__:
            raise UnsupportedError(
                f"maskjet must be of one version on all nodes, got {__version__} beside the driver's "
                f"{self._facts['version']}."
            )
        self._folder, self._parts = open_folder(orders["out"]), Parts(orders["out"])
        self._markers = Markers(self._folder)
        self._run, self._turns = orders["run"], _Turns()
        self.model = open_model(self._settings, replace(self._settings.config, device=orders["device"]))

    def answer(self, part: str, segment: Segment) -> dict[str, Any]:
        """Do a segment, and return in JSON types its outcome, empty if it was not begun; or an error that ends the job.

        The process ends if its device fails, since nothing runs on it any more; who started it starts another one.
        """
        try:
            outcome = self.do(part, segment)
            return {} if outcome is None else asdict(outcome)
        except DeviceError as error:
            _log.warning("%s", first_line(error))
            os._exit(FAILED)
        except BaseException as error:  # a thread's is not seen by anybody, and the driver would wait for ever
            return told(error, segment.name)

    def do(self, part: str, segment: Segment) -> Outcome | None:
        """Detect on a segment and write its part, unless it is there or the job ends.

        A segment that was begun before has killed its process, or was beside one that did. So it is begun with nothing
        beside it, and given up in the end.

        Returns:
            What became of it; None if the job ends, and it was not begun.

        Raises:
            OutputError: The part can't be written.
            DeviceError: The device failed; the process must end.
        """
        with self._turns.take():
            names = self._markers.names()
            if not of_segment(part, names):
                return self._begin(part, segment, names)
        with self._turns.take(is_alone=True):
            return self._begin(part, segment, self._markers.names())

    def _begin(self, part: str, segment: Segment, names: Collection[str]) -> Outcome | None:
        begun = of_segment(part, names)
        outcome = None
        if self._parts.has(part):  # of a worker that died before it could tell
            outcome = outcome_of(part, segment, self._parts.about(part))
        elif self._run in names:
            begun.append(f"{part}.{len(begun) + 1}")
            self._markers.put(begun[-1])
            if len(begun) > TRIES:
                failures = ((segment.name, f"its worker died {TRIES} times"),)
                note_failures(self._folder, part, failures)
                return Outcome(part, failures=failures, is_written=False, is_lost=True)
            if len(begun) > 1:
                note_failures(self._folder, part, ())  # instead of those that the last one may have noted
            outcome = self._work(part, segment)
        self._markers.remove(*begun)
        return outcome

    def _work(self, part: str, segment: Segment) -> Outcome:
        """Try three times: what is bad may be so for a moment only, as where a disk or a network fails."""
        outcome, table = Outcome(part, is_written=False), None
        for _ in range(TRIES):
            outcome, table = self._try(part, segment)
            if not outcome.failures:
                break
        if outcome.failures:
            note_failures(self._folder, part, outcome.failures)
        if table is not None:
            self._parts.write(part, with_metadata(table, **self._facts))
        return outcome

    def _try(self, part: str, segment: Segment) -> tuple[Outcome, pyarrow.Table | None]:
        """What came out, and the part's rows if there are any."""
        try:
            table = process(
                segment, self.model, rows=self._settings.rows, every=self._settings.every, streams=self._streams
            )
        except (OutputError, DeviceError):
            raise
        except MaskjetError as error:
            return Outcome(part, failures=((segment.name, first_line(error)),), is_written=False), None
        except Exception as error:  # a foreign library's, on a file that nobody has seen yet: the job goes on
            _log.exception("%s failed", segment.name)
            return Outcome(part, failures=((segment.name, repr(error)),), is_written=False), None
        return outcome_of(part, segment, metadata(table.schema)), table


class _Turns:
    """A lock that threads share, or that one has alone; those that wait to be alone go first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = self._alone = 0  # the second: that are alone, or wait for it

    @contextmanager
    def take(self, *, is_alone: bool = False) -> Iterator[None]:
        with self._changed:
            self._alone += is_alone
            self._changed.wait_for(lambda: not (self._working if is_alone else self._alone))
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._alone -= is_alone
                self._changed.notify_all()


def told(error: BaseException, name: str) -> dict[str, Any]:
    """An error that ends the job, in JSON types; a foreign library's with the name of what it is of."""
    if not isinstance(error, MaskjetError):
        error = MaskjetError(f"{name} failed: {error!r}.")
    return {"error": type(error).__name__, "text": str(error)}


def taken(answer: Mapping[str, Any]) -> Outcome | None:
    """The outcome that a worker told; None if it has begun nothing.

    Raises:
        MaskjetError: The error that it told instead.
    """
    if "error" not in answer:
        return Outcome(**answer) if answer else None
    kind: Any = getattr(errors, str(answer["error"]), MaskjetError)
    more = {"index": 0} if kind in (DeviceError, errors.FrameError) else {}
    raise kind(answer["text"], **more)
