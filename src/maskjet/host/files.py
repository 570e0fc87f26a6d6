"""`file:` URLs, and atomic output files: written under a temporary name, renamed once complete."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import av.error
import orjson

from maskjet.errors import MaskjetError, OutputError, SourceError, explain

_LONGEST_NAME = 255  # bytes; limit of Linux file systems
_MARK = ".partial"
_FILE_URL = re.compile(r"file://([^/]*)(.*)", re.IGNORECASE | re.DOTALL)


def is_file_url(text: str) -> bool:
    """Whether a source's name is a URL of a file, `file://…`."""
    return _FILE_URL.match(text) is not None


def path_of_url(text: str) -> str:
    """Path of a `file:` URL, with percent-encoding decoded, and "?" and "#" in it; other texts stay unchanged.

    Raises SourceError if the URL names another machine.
    """
    match = _FILE_URL.match(text)
    if match is None:
        return text
    host, path = match.groups()
    if host.lower() not in ("", "localhost"):
        raise SourceError(f"source must be a file of this machine, {text!r} names {host!r}: file:///… has no host.")
    return unquote(path, errors="surrogateescape") or "/"


@contextmanager
def naming(path: str, name: str = "out") -> Iterator[None]:
    """Translate errors of the system or FFmpeg to an OutputError that names path and argument."""
    try:
        yield
    except MaskjetError:
        raise
    except (OSError, av.error.FFmpegError) as error:
        raise OutputError(f"{name} must be writable, {path!r} is not: {explain(error)}.") from error


class TemporaryFile:
    """An output file that is written as a.partial.mp4 and renamed to a.mp4 by `finish`.

    No other file has the temporary name: only a whole file replaces another, and two programs that write the same
    output don't mix. A path that is no regular file, such as a pipe or a device, is written to directly. Making one,
    `write` and `finish` raise OutputError, which names the argument `name`, if the file can't be written.

    Attributes:
        file: Binary file to write to; `flush` passes all data to the system.
        path: Absolute path of the file that is written, in a folder that was made if missing.
    """

    def __init__(self, path: str, *, suffix: str | None = None, name: str = "out") -> None:
        self._asked_for, self._name = path, name
        self._end = 0  # bytes written completely
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
        """Path of the temporary file, relative if the output's path was."""
        if Path(self._asked_for).is_symlink():
            return str(self.path)
        return str(Path(self._asked_for).with_name(self.path.name))

    def write(self, data: bytes) -> None:
        """Write data and flush it to the system: all of it, or none if there is no room."""
        with naming(self._asked_for, self._name):
            try:
                self.file.write(data)
                self.file.flush()
            except OSError:
                self._drop()
                raise
        self._end += len(data)

    def _drop(self) -> None:
        """Close the file, truncated to the last complete write, and discard the buffer."""
        with suppress(OSError):
            os.ftruncate(self.file.fileno(), self._end)
        with suppress(OSError):
            self.file.raw.close()

    def finish(self, *, is_durable: bool = True) -> None:
        """Give the file its final name; an existing file is replaced atomically.

        If durable, it is synced to disk first, so that it is whole even after a power loss.
        """
        with naming(self._asked_for, self._name):
            self.file.flush()
            if is_durable and self.path != self._target:
                os.fsync(self.file.fileno())
            self.file.close()
            if self.path != self._target:
                self.path.replace(self._target)

    def keep(self) -> None:
        """Close the file and leave it under its temporary name."""
        with suppress(OSError):
            if not self.file.closed:
                self.file.flush()
        with suppress(OSError):
            self.file.raw.close()  # not the buffered file, which would try to write again

    def remove(self) -> None:
        """Close the file and remove it."""
        self.keep()
        if self.path != self._target:
            self.path.unlink(missing_ok=True)


@contextmanager
def replacing(
    path: str | Path, name: str = "out", *, suffix: str | None = None, is_durable: bool = True
) -> Iterator[TemporaryFile]:
    """Write a file atomically: renamed when the block ends, removed if it raises.

    Arguments and errors are those of `TemporaryFile` and `TemporaryFile.finish`.
    """
    temporary = TemporaryFile(str(path), suffix=suffix, name=name)
    try:
        with naming(str(path), name):
            yield temporary
            temporary.finish(is_durable=is_durable)
    except BaseException:
        temporary.remove()
        raise


def is_same_file(path: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two paths refer to the same existing file."""
    with suppress(OSError):
        return Path(path).samefile(other)
    return False


def write_json(path: str | Path, value: Any, name: str = "report") -> None:
    """Write a value of JSON types, with finite numbers, as indented JSON; see `replacing`."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    with replacing(path, name) as temporary:
        temporary.write(text.encode())


def compact_json(value: Any) -> str:
    """A value of JSON types as one line of ASCII, which any stdout and any reader of lines takes.

    Text beyond ASCII takes ten times as long. NaN and infinity become null or raise ValueError: callers refuse them.
    """
    with suppress(orjson.JSONEncodeError):  # file names that are no UTF-8 have lone surrogates
        if (text := orjson.dumps(value)).isascii():
            return text.decode()
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _create(target: Path, suffix: str) -> tuple[Path, int]:
    """Create a temporary file beside its target, with the target's permissions; returns path and descriptor."""
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
    raise AssertionError  # unreachable: numbers do not run out
