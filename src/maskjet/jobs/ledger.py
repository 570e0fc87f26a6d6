"""What a job's folder knows besides the parts: the plan, the failures, and who works on it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from maskjet.errors import OutputError
from maskjet.files import naming, replacing
from maskjet.jobs.parts import MANIFEST
from maskjet.jobs.segments import Segment, digest
from maskjet.jobs.work import Outcome

LOCK, FAILURES = "job.lock", "failures.jsonl"
_PLANNING = "segments.partial.jsonl"
_GLANCE_S = 0.02  # how often a reader looks for lines of the plan
_PATIENCE_S = 2.0


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have a job's folder for oneself; the lock ends with the process, however that ends.

    Args:
        folder: The job's folder, which is made.

    Raises:
        OutputError: Another job has it, or it can't be written to.
    """
    path = folder / LOCK
    with naming(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with naming(str(folder)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(
                    f"out must not be in use, {str(folder)!r} is: {_owner(path)} works on it. Wait for it, or choose "
                    "another folder."
                ) from None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        yield
    finally:
        os.close(descriptor)


def _owner(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        owner = json.loads(path.read_bytes()[:4096])
        return f"process {int(owner['pid'])} on {str(owner['host'])[:100]!r}"
    return "another process"


class Plan:
    """The segments of a job, written by one thread as they are found, and read by another.

    The file is both the queue and the record that `merge` follows, so neither holds the segments in memory.

    Args:
        folder: The job's folder.
        segments: The segments, planned as they are asked for.
        identity: What the results depend on; see `Settings.identity`.
    """

    def __init__(self, folder: Path, segments: Iterable[Segment], identity: Mapping[str, Any]) -> None:
        self._folder, self._segments, self._identity = folder, segments, identity
        self.planned = 0
        """Segments found so far."""
        self.is_complete = False
        """Whether all are found."""
        self._error: BaseException | None = None
        self._is_stopped = False
        with naming(str(folder)):
            self._file = (folder / _PLANNING).open("wb")
            self._reader = (folder / _PLANNING).open("rb")  # before the file takes another name
        self._thread = threading.Thread(target=self._write, name="maskjet-plan", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        try:
            with naming(str(self._folder)), self._file:
                for segment in self._segments:
                    if self._is_stopped:
                        return
                    line = {"part": digest(segment, self._identity), "segment": segment.as_dict()}
                    self._file.write(json.dumps(line).encode() + b"\n")
                    self._file.flush()
                    self.planned += 1
                (self._folder / _PLANNING).replace(self._folder / MANIFEST)
                self.is_complete = True
        except BaseException as error:  # raised where the plan is read
            self._error = error

    def read(self) -> Iterator[tuple[str, Segment] | None]:
        """The name of each part with its segment, in the plan's order; None while the next one is not known yet.

        To be called once.

        Raises:
            MaskjetError: Planning failed.
        """
        with naming(str(self._folder)), self._reader as file:
            seen = 0
            while True:
                is_alive = self._thread.is_alive()
                while seen < self.planned:
                    seen += 1
                    entry = json.loads(file.readline())
                    yield entry["part"], Segment.from_dict(entry["segment"])
                if not is_alive and seen == self.planned:
                    break
                yield None
                time.sleep(_GLANCE_S)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop planning; may be called twice. A thread that waits for a store ends with it."""
        self._is_stopped = True
        self._thread.join(_PATIENCE_S)
        self._reader.close()


class Failures:
    """What failed: a line per file or frame, in a file beside the parts, kept until its segment succeeds.

    Args:
        folder: The job's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FAILURES
        self._by_part: dict[str, dict[str, str]] = {}  # the reason by what failed
        self._current: set[str] = set()  # parts that the plan still has
        with naming(str(self._path)), suppress(FileNotFoundError), self._path.open("rb") as file:
            for line in file:
                with suppress(ValueError, KeyError, TypeError):  # a line that was cut off
                    entry = json.loads(line)
                    self._by_part.setdefault(str(entry["part"]), {})[str(entry["what"])] = str(entry["reason"])

    @property
    def count(self) -> int:
        """Files and frames of the plan that failed."""
        return sum(len(self._by_part[part]) for part in self._current)

    def keep(self, part: str) -> None:
        """Keep what failed of a segment that is not worked on again."""
        if part in self._by_part:
            self._current.add(part)

    def take(self, outcome: Outcome) -> None:
        """Record what became of a segment, at once, so that it outlives this process.

        Raises:
            OutputError: It can't be written.
        """
        self._by_part.pop(outcome.part, None)
        self._current.discard(outcome.part)
        if not outcome.failures:
            return
        self._by_part[outcome.part] = dict(outcome.failures)
        self._current.add(outcome.part)
        with naming(str(self._path)), self._path.open("ab") as file:
            file.write(self._lines(outcome.part))

    def finish(self, *, plan_is_complete: bool) -> None:
        """Write the file anew, without what was mended; and without what the plan no longer has, if that is known.

        Raises:
            OutputError: It can't be written.
        """
        parts = self._current if plan_is_complete else self._by_part
        if not parts:
            with naming(str(self._path)):
                self._path.unlink(missing_ok=True)
            return
        with replacing(self._path) as file:
            for part in sorted(parts):
                file.write(self._lines(part))

    def _lines(self, part: str) -> bytes:
        entries = ({"part": part, "what": what, "reason": why} for what, why in self._by_part[part].items())
        return "".join(json.dumps(entry) + "\n" for entry in entries).encode()
