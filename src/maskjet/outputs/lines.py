"""JSON lines as output."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.errors import InputError, OutputError
from maskjet.host.files import TemporaryFile, compact_json, naming
from maskjet.outputs.sink import Sink
from maskjet.sources.frames import Frame, Source


class TextFile(Sink):
    """A text file written in whole, flushed lines, so that it is valid even after a crash."""

    def __init__(self, path: str, *, suffix: str | None = None) -> None:
        self._path = path
        self._temporary: TemporaryFile | None = TemporaryFile(path, suffix=suffix)
        self._frames = 0
        self.paths: Sequence[str] = (self._temporary.shown,)

    def append(self, text: str, *, frames: int = 1) -> None:
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
        self.append(line(frame, detections, rotated_boxes=self.rotated_boxes))


class RecordLines(JsonLines):
    """JSON lines of one source that `maskjet parity` compares: each also has "digest", that of the frame's pixels.

    The first line says how they were made; the last one lists what could not be decoded, and that it is the last.
    """

    def __init__(self, path: str, about: Mapping[str, Any], source: Source) -> None:
        super().__init__(path)
        self._source = source
        self.append(compact_json(about) + "\n", frames=0)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one line."""
        self.append(line(frame, detections, digest(frame.image), rotated_boxes=self.rotated_boxes))

    def _finish(self, temporary: TemporaryFile) -> None:
        self.append(compact_json({"skipped": [reason for _, reason in self._source.bad_frames]}) + "\n", frames=0)
        super()._finish(temporary)


class StdoutLines(Sink):
    """JSON lines on stdout, as `JsonLines` writes them to a file."""

    paths = ("-",)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one line."""
        self.append(line(frame, detections, rotated_boxes=self.rotated_boxes))

    def append(self, text: str) -> None:
        """Write a line of a frame."""
        stdout: IO[str] | None = sys.stdout  # None if stdout was closed at start
        if stdout is None:
            raise OutputError("out must be writable, '-' is not: stdout is closed.")
        with naming("-"):
            stdout.write(text)
            stdout.flush()


def line(frame: Frame, detections: Detections, digest: str | None = None, *, rotated_boxes: bool = False) -> str:
    """Encode one frame as a line of JSON; with the digest of its pixels in a record."""
    about = place_of(frame) | {"name": frame.name}
    if digest is not None:
        about["digest"] = digest
    if frame.counts:
        about["counts"] = {count.name: count.as_dict() for count in frame.counts}
    return compact_json(about | detections.as_dict(rotated_boxes=rotated_boxes)) + "\n"


def place_of(frame: Frame) -> dict[str, Any]:
    """A frame's index, time_s and source, with which its lines begin; raises InputError if the time is not finite."""
    if frame.time_s is not None and not math.isfinite(frame.time_s):
        raise InputError(f"time_s must be finite, frame {frame.index} has {frame.time_s}.")
    return {"index": frame.index, "time_s": frame.time_s, "source": frame.source}


def digest(image: NDArray[np.uint8]) -> str:
    """Digest of an image's pixels, 16 hexadecimal digits."""
    return hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest()
