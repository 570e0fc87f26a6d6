"""The folder of a job's results: on this machine, or in a store at a URL."""

from __future__ import annotations

import os
import posixpath
import tempfile
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from maskjet.errors import OutputError, border
from maskjet.files import Part, naming
from maskjet.jobs import storage

_PARTIAL = ".partial"
_BLOCK = 8 << 20


class Folder(Protocol):
    """Holds files, each at a place: its path below the folder, as in "parts/ab/abcd.parquet".

    Methods raise OutputError where the folder can't be written to, read or listed.
    """

    can_append: bool
    """Whether files can grow; in a store they are replaced."""

    def name(self, place: str) -> str:
        """Path or URL of a file."""

    def write(self, place: str, data: bytes) -> None:
        """Write a file: once this returns, it is whole and kept; after an error nothing is left of it."""

    def append(self, place: str, data: bytes) -> None:
        """Add to a file, if `can_append`."""

    def read(self, place: str) -> bytes | None:
        """All of a file; None if there is none."""

    def open(self, place: str) -> Any:
        """Open a binary file to read it. Raises what Python or fsspec raises."""

    def existing(self, places: Iterable[str]) -> set[str]:
        """Those of the places that have a file."""

    def remove(self, place: str) -> None:
        """Remove a file, if it is there."""

    def draft(self, place: str) -> IO[bytes]:
        """A file of this machine with a name, to write what will be at a place."""

    def publish(self, draft: IO[bytes], place: str) -> None:
        """Let a draft appear at its place, whole; the draft may be gone afterwards."""

    def clean(self, folder: str) -> int:
        """Remove what killed runs have left in the folders of a folder, and count it."""


def open_folder(out: str) -> Folder:
    """The folder at a path or URL; nothing is made yet.

    Raises:
        InputError: It is a URL that may hold a secret, or of an unknown scheme.
        OutputError: The store can't be reached.
        MissingDependencyError: The package for such a URL is not installed.
    """
    return RemoteFolder(out) if storage.is_remote(out) else LocalFolder(out)


class LocalFolder:
    """A folder of this machine, or of a file system that it has mounted.

    Args:
        out: Its path.
    """

    can_append = True

    def __init__(self, out: str) -> None:
        self.path = Path(out)

    def name(self, place: str) -> str:  # noqa: D102
        return str(self.path / place)

    def write(self, place: str, data: bytes) -> None:  # noqa: D102
        path = self.path / place
        part = Part(str(path), suffix="")  # no suffix by which programs would find the file
        try:
            part.write(data)
            part.finish()
        except BaseException:
            part.remove()
            raise
        with naming(str(path)):
            for folder in (path.parent, *(each for each in path.parent.parents if each.is_relative_to(self.path))):
                _sync_folder(folder)  # any of them may be new

    def append(self, place: str, data: bytes) -> None:  # noqa: D102
        with naming(self.name(place)), (self.path / place).open("ab") as file:
            file.write(data)

    def read(self, place: str) -> bytes | None:  # noqa: D102
        with naming(self.name(place)):
            try:
                return (self.path / place).read_bytes()
            except FileNotFoundError:
                return None

    def open(self, place: str) -> Any:  # noqa: D102
        return (self.path / place).open("rb")

    def existing(self, places: Iterable[str]) -> set[str]:  # noqa: D102
        return {place for place in places if self._is_there(place)}

    def _is_there(self, place: str) -> bool:
        path = os.path.join(self.path, place)  # noqa: PTH118 - a million times
        with naming(path):
            try:
                os.stat(path)  # noqa: PTH116
            except FileNotFoundError:
                return False
            return True

    def remove(self, place: str) -> None:  # noqa: D102
        with naming(self.name(place)):
            (self.path / place).unlink(missing_ok=True)

    def draft(self, place: str) -> IO[bytes]:  # noqa: D102
        path = self.path / place
        with naming(str(path)):
            return path.with_suffix(f"{_PARTIAL}{path.suffix}").open("wb")

    def publish(self, draft: IO[bytes], place: str) -> None:  # noqa: D102
        with naming(self.name(place)):
            draft.flush()
            Path(draft.name).replace(self.path / place)

    def clean(self, folder: str) -> int:  # noqa: D102
        removed, root = 0, self.path / folder
        with naming(str(root)):
            for path in root.glob(f"*/*{_PARTIAL}*"):
                path.unlink(missing_ok=True)
                removed += 1
        return removed


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RemoteFolder:
    """A folder in a store, whose objects are there once they are written to their end.

    Args:
        out: Its URL.
    """

    can_append = False

    def __init__(self, out: str) -> None:
        self._url = out
        self._system, self._root = storage.resolve(out, "out", OutputError)
        self._listed: dict[str, NDArray[np.bytes_]] = {}

    def _at(self, place: str) -> str:
        return f"{self._root}/{place}"

    def name(self, place: str) -> str:  # noqa: D102
        return f"{self._url.rstrip('/')}/{place}"

    def write(self, place: str, data: bytes) -> None:  # noqa: D102
        self._upload(place, [data])

    def _upload(self, place: str, blocks: Iterable[bytes]) -> None:
        try:
            with (
                border(OutputError, f"out must be writable, {self.name(place)!r} is not"),
                self._system.open(self._at(place), "wb") as stream,
            ):
                for block in blocks:
                    stream.write(block)
        except BaseException:
            with suppress(Exception):  # closing the stream may have kept what was written so far
                self._system.rm_file(self._at(place))
            raise

    def append(self, place: str, data: bytes) -> None:  # noqa: D102
        raise NotImplementedError

    def read(self, place: str) -> bytes | None:  # noqa: D102
        with border(OutputError, f"out must be readable, {self.name(place)!r} is not"):
            try:
                with self._system.open(self._at(place), "rb") as stream:
                    data: bytes = stream.read()
                    return data
            except FileNotFoundError:
                return None

    def open(self, place: str) -> Any:  # noqa: D102
        return self._system.open(self._at(place), "rb")

    def existing(self, places: Iterable[str]) -> set[str]:
        """Those of the places that had a file when their folder was first asked about.

        A folder is listed once, a thousand names in an answer, where each file would be a question of its own. A
        million names of parts take 40 MB.
        """
        return {place for place in places if self._was_there(place)}

    def _was_there(self, place: str) -> bool:
        folder, _, text = place.rpartition("/")
        if folder not in self._listed:
            self._listed[folder] = self._names(folder)
        names, name = self._listed[folder], text.encode()
        at = bisect_left(names, name)
        return at < len(names) and bool(names[at] == name)

    def _names(self, folder: str) -> NDArray[np.bytes_]:
        """The names of a folder's files, sorted."""
        with border(OutputError, f"out must be readable, {self.name(folder)!r} is not"):
            infos = []
            with suppress(FileNotFoundError):
                infos = self._system.ls(self._at(folder), detail=True)
            names = [posixpath.basename(info["name"]).encode() for info in infos if info["type"] == "file"]
            return np.sort(np.array(names, np.bytes_))

    def remove(self, place: str) -> None:  # noqa: D102
        with (
            border(OutputError, f"out must be writable, {self.name(place)!r} is not"),
            suppress(FileNotFoundError),
        ):
            self._system.rm_file(self._at(place))

    def draft(self, place: str) -> IO[bytes]:  # noqa: D102, ARG002
        with naming(tempfile.gettempdir(), "TMPDIR"):
            return tempfile.NamedTemporaryFile(prefix="maskjet-")

    def publish(self, draft: IO[bytes], place: str) -> None:  # noqa: D102
        draft.flush()
        with Path(draft.name).open("rb") as file:
            self._upload(place, iter(lambda: file.read(_BLOCK), b""))

    def clean(self, folder: str) -> int:  # noqa: D102, ARG002
        return 0  # an object that was not written to its end has never been there
