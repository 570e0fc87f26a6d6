"""The job's manifest and its log of failures."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from maskjet.host.files import naming
from maskjet.jobs.folders import Folder
from maskjet.jobs.parts import MANIFEST, Parts
from maskjet.jobs.rows import metadata
from maskjet.jobs.segments import Segment, digest

FAILURES, NOTES = "failures.jsonl", "failed"
_BLOCK = 8 << 20  # bytes of the plan copied at a time
_GLANCE_S = 0.02  # polling interval of the plan's reader
_PATIENCE_S = 2.0  # for the planning thread to end
_SAVE_S = 5.0  # how often failures are written


class Plan:
    """The manifest of a job: planned and written by one thread, meanwhile read by another.

    A local file without a name is the queue between them and, once complete, copied to segments.jsonl, which `merge`
    follows. So memory does not grow with the number of segments, which are found as they are iterated over.
    """

    def __init__(self, folder: Folder, segments: Iterable[Segment], identity: Mapping[str, Any]) -> None:
        self._folder, self._segments, self._identity = folder, segments, identity
        self.planned = 0
        """Segments found so far."""
        self.is_complete = False
        """Whether planning is complete."""
        self._error: BaseException | None = None
        self._is_stopped = False
        with naming(*folder.scratch):
            self._lines = tempfile.TemporaryFile(dir=folder.scratch[0])  # noqa: SIM115 - `_write` closes it
            self._reader = Path(f"/proc/self/fd/{self._lines.fileno()}").open("rb")  # noqa: SIM115 - as `close` does
        self._thread = threading.Thread(target=self._write, name="maskjet-plan", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        try:
            with naming(*self._folder.scratch), self._lines as lines:
                for segment in self._segments:
                    if self._is_stopped:
                        return
                    line = {"part": digest(segment, self._identity), "segment": asdict(segment)}
                    lines.write(json.dumps(line).encode() + b"\n")
                    lines.flush()
                    self.planned += 1
                lines.seek(0)
                self._folder.write(MANIFEST, iter(partial(lines.read, _BLOCK), b""))
                self.is_complete = True
        except BaseException as error:  # raised again in `read`
            self._error = error

    def read(self) -> Iterator[tuple[str, Segment] | None]:
        """Yield name and segment of each planned part, None while the next one is not planned; raises what ended it."""
        with naming(*self._folder.scratch), self._reader as file:
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
        """Stop planning; may be called twice. A thread that waits for a store is not waited for."""
        self._is_stopped = True
        self._thread.join(_PATIENCE_S)
        self._reader.close()


class Failures:
    """The log of failures: a line per file or frame of this plan in failures.jsonl.

    A worker writes its segment's failures to a file in failed/ before the part, and there they stay until the segment
    succeeds. So a killed driver loses none. Methods raise OutputError if a file can't be written.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder, self._saved_at, self._is_saved = folder, -_SAVE_S, True
        self._noted = folder.names(NOTES)
        self._by_part: dict[str, bytes] = {}  # lines of the segments in this plan

    @property
    def count(self) -> int:
        """Number of failed files and frames of this plan."""
        return sum(lines.count(b"\n") for lines in self._by_part.values())

    def keep(self, part: str, parts: Parts) -> None:
        """Keep the failures of a finished segment; failures noted before its part was written are dropped."""
        if part in self._noted:
            with parts.open(part) as file:
                if metadata(file.schema_arrow)["bad_frames"]:
                    self._by_part[part] = self._read(part)

    def take(self, part: str, failures: Collection[tuple[str, str]]) -> None:
        """Record the failures of a segment; the file is written every 5 seconds and at the end."""
        if failures:
            self._by_part[part] = _lines(part, failures)
            self._is_saved = False
        elif part in self._noted:
            note_failures(self._folder, part, ())
        if not self._is_saved and time.monotonic() - self._saved_at >= _SAVE_S:
            self._write(self._by_part)
            self._saved_at, self._is_saved = time.monotonic(), True

    def finish(self, *, plan_is_complete: bool) -> None:
        """Write the log, of a plan that is not complete with what earlier runs noted."""
        if not plan_is_complete:
            self._by_part |= {part: self._read(part) for part in self._noted - self._by_part.keys()}
        self._write(sorted(self._by_part))

    def _read(self, part: str) -> bytes:
        return self._folder.read(f"{NOTES}/{part}") or b""

    def _write(self, parts: Iterable[str]) -> None:
        if lines := b"".join(self._by_part[part] for part in parts):
            self._folder.write(FAILURES, lines)
        else:
            self._folder.remove(FAILURES)


def note_failures(folder: Folder, part: str, failures: Collection[tuple[str, str]]) -> None:
    """Write the failures of a segment to its file in failed/, for this driver or the next one; or raise OutputError."""
    if failures:
        folder.write(f"{NOTES}/{part}", _lines(part, failures))
    else:
        folder.remove(f"{NOTES}/{part}")


def _lines(part: str, failures: Collection[tuple[str, str]]) -> bytes:
    entries = ({"part": part, "what": what, "reason": why} for what, why in failures)
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()
