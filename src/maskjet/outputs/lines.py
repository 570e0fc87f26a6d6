"""JSON lines as output."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import IO, Any

from maskjet.detections import Detections
from maskjet.errors import InputError, OutputError
from maskjet.host.files import TemporaryFile, naming
from maskjet.outputs.sink import Sink
from maskjet.sources.counts import counts_of
from maskjet.sources.frames import Frame


class TextFile(Sink):
    """A text file written in whole, flushed lines, so that it is valid even after a crash."""

    def __init__(self, path: str, *, suffix: str | None = None) -> None:
        self._path = path
        self._temporary: TemporaryFile | None = TemporaryFile(path, suffix=suffix)
        self._frames = 0
        self.paths: Sequence[str] = (self._temporary.shown,)

    def _append(self, text: str, *, frames: int = 1) -> None:
        """Append the lines of `frames` frames."""
        if self._temporary is None:
            raise InputError(f"{self._path!r} is closed; open another sink.")
        self._temporary.write(text.encode())
        self._frames += frames

    def close(self) -> None:
        """Finish the file: rename it from its temporary name."""
        if self._temporary is None:
            return
        try:
            self._finish(self._temporary)
        except BaseException:
            self.abandon()
            raise
        self._temporary, self.paths = None, (self._path,)

    def _finish(self, temporary: TemporaryFile) -> None:
        temporary.finish()

    def abandon(self) -> None:
        """Keep the file under its temporary name; remove it if it has no frames."""
        if self._temporary is None:
            return
        if self._frames:
            self._temporary.keep()
        else:
            self._temporary.remove()
            self.paths = ()
        self._temporary = None


class JsonLines(TextFile):
    """One line of JSON per frame: index, time_s, source, name and the fields of `Detections.as_dict`.

    Frames with counts of lines and zones also have "counts": by name, those of `Count.as_dict`.
    """

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one line."""
        self._append(line(frame, detections))


class StdoutLines(Sink):
    """JSON lines on stdout, as `JsonLines` writes them to a file."""

    paths = ("-",)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one line."""
        stdout: IO[str] | None = sys.stdout  # None if stdout was closed at start
        if stdout is None:
            raise OutputError("out must be writable, '-' is not: stdout is closed.")
        with naming("-"):
            stdout.write(line(frame, detections))
            stdout.flush()


def line(frame: Frame, detections: Detections) -> str:
    """Encode one frame as a line of JSON."""
    about: dict[str, Any] = {"index": frame.index, "time_s": frame.time_s, "source": frame.source, "name": frame.name}
    if counts := counts_of(frame):
        about["counts"] = {count.name: count.as_dict() for count in counts}
    return json.dumps(about | detections.as_dict(), allow_nan=False) + "\n"
