"""Files that take their name only when they are whole: nothing is replaced by half a result."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

import av.error

from maskjet.errors import MaskjetError, OutputError, explain

_LONGEST_NAME = 255  # bytes, on Linux's file systems
_MARK = ".partial"


@contextmanager
def naming(path: str, name: str = "out") -> Iterator[None]:
    """Turn what the system or FFmpeg says of an output into an error that names it.

    Args:
        path: The output's.
        name: Of the argument that gave it.
    """
    try:
        yield
    except MaskjetError:
        raise
    except (OSError, av.error.FFmpegError) as error:
        raise OutputError(f"{name} must be writable, {path!r} is not: {explain(error)}.") from error


class Part:
    """A file that is written beside its name, as a.partial.mp4, and takes it, a.mp4, in `finish`.

    The other name is one that no file has: no file is ever written over but by one that is whole, and two programs that
    write the same output don't mix. What is no regular file, such as a pipe or a device, is written to as it is.

    Args:
        path: Where it is to lie in the end; its folder is made.
        suffix: Of the other name, with its dot; None for the same.
        name: Of the argument that gave the path, for errors.

    Attributes:
        file: To write to; nothing is kept from the system after `flush`.
        path: The absolute path that is written to.

    Raises:
        OutputError: It can't be opened.
    """

    def __init__(self, path: str, *, suffix: str | None = None, name: str = "out") -> None:
        self._asked_for, self._name = path, name
        self._end = 0  # of what was written whole
        with naming(path, name):
            if "\0" in path:
                raise OutputError(f"{name} must be a path without NUL characters, got {path!r}.")
            self._target = Path(os.path.realpath(path))
            self._target.parent.mkdir(parents=True, exist_ok=True)
            if self._target.exists() and not self._target.is_file():
                self.path, self.file = self._target, self._target.open("wb")
            else:
                self.path, descriptor = _create(self._target, self._target.suffix if suffix is None else suffix)
                self.file = os.fdopen(descriptor, "wb")

    @property
    def shown(self) -> str:
        """The path that is written to, as the output was asked for."""
        if Path(self._asked_for).is_symlink():
            return str(self.path)
        return str(Path(self._asked_for).with_name(self.path.name))

    def write(self, data: bytes) -> None:
        """Write data through to the system: all of it, or, where there is no room, nothing.

        Raises:
            OutputError: It can't be written.
        """
        with naming(self._asked_for, self._name):
            try:
                self.file.write(data)
                self.file.flush()
            except OSError:
                self._drop()
                raise
        self._end += len(data)

    def _drop(self) -> None:
        """Close the file, cut to what was written whole, without what the buffer still holds."""
        with suppress(OSError):
            os.ftruncate(self.file.fileno(), self._end)
        with suppress(OSError):
            self.file.raw.close()

    def finish(self, *, is_durable: bool = True) -> None:
        """Give the file its name; what had it before is replaced in one step.

        Args:
            is_durable: Whether to wait until the disk has it, so that it is whole after a power loss, too.

        Raises:
            OutputError: It can't be written.
        """
        with naming(self._asked_for, self._name):
            self.file.flush()
            if is_durable and self.path != self._target:
                os.fsync(self.file.fileno())
            self.file.close()
            if self.path != self._target:
                self.path.replace(self._target)

    def keep(self) -> None:
        """Close the file and leave it under the other name."""
        with suppress(OSError):
            if not self.file.closed:
                self.file.flush()
        with suppress(OSError):
            self.file.raw.close()  # not the buffer, which would try again to write what it holds

    def remove(self) -> None:
        """Close the file and remove it."""
        self.keep()
        if self.path != self._target:
            self.path.unlink(missing_ok=True)


@contextmanager
def replacing(path: str | Path, name: str = "out") -> Iterator[Part]:
    """A file that takes its name when the block ends, and is removed if an error ends it.

    Args:
        path: As for `Part`.
        name: Likewise.

    Raises:
        OutputError: It can't be written.
    """
    part = Part(str(path), name=name)
    try:
        with naming(str(path), name):
            yield part
            part.finish()
    except BaseException:
        part.remove()
        raise


def write_json(path: str | Path, value: Any, name: str = "report") -> None:
    """Write a value as JSON, for people to read; an existing file is replaced once the new one is whole.

    Args:
        path: Of the file; its folder is made.
        value: JSON types; no number that is not finite, which JSON does not have.
        name: Of the argument that gave the path, for errors.

    Raises:
        OutputError: It can't be written.
    """
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    with replacing(path, name) as part:
        part.write(text.encode())


def _create(target: Path, suffix: str) -> tuple[Path, int]:
    """Open a new file beside another: its path and descriptor. It has the permissions of what it will replace."""
    marks = chain((_MARK,), (f"{_MARK}-{number}" for number in count(2)))
    for mark in marks:
        room = _LONGEST_NAME - len(os.fsencode(mark + suffix))
        path = target.with_name(os.fsdecode(os.fsencode(target.stem)[:room]) + mark + suffix)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        if target.exists():
            with suppress(OSError):  # some file systems have no permissions
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
        return path, descriptor
    raise AssertionError  # there is always another number
