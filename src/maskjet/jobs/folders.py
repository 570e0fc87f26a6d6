"""The folder of a job's results: on this machine, or in a store at a URL."""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from maskjet.errors import OutputError, translate_errors
from maskjet.files import Part, naming
from maskjet.jobs import storage

_PARTIAL = ".partial"
_BLOCK = 8 << 20


class LocalFolder:
    """A folder of this machine, or of a file system that it has mounted.

    It holds files, each at a place: its path below the folder, as in "parts/ab/abcd.parquet". Methods raise OutputError
    where the folder can't be written to, read or listed.

    Args:
        out: Its path.
    """

    def __init__(self, out: str) -> None:
        self.path = Path(out)

    def name(self, place: str) -> str:
        """Path or URL of a file."""
        return str(self.path / place)

    def write(self, place: str, data: bytes) -> None:
        """Write a file: once this returns, it is whole and kept; after an error nothing is left of it."""
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

    def mark(self, place: str) -> None:
        """Make an empty file, which a machine that loses its power may lose."""
        path = self.path / place
        with naming(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def read(self, place: str) -> bytes | None:
        """All of a file; None if there is none."""
        with naming(self.name(place)):
            try:
                return (self.path / place).read_bytes()
            except FileNotFoundError:
                return None

    def open(self, place: str) -> Any:
        """Open a file to read it: a binary file of Python's or pyarrow's. Raises what these raise."""
        return (self.path / place).open("rb")

    def has(self, place: str) -> bool:
        """Whether a place has a file now."""
        path = os.path.join(self.path, place)  # noqa: PTH118 - a million times
        with naming(path):
            try:
                os.stat(path)  # noqa: PTH116
            except FileNotFoundError:
                return False
            return True

    had = has
    """Whether a place had a file when its folder was first asked about: what is quicker to tell in a store."""

    def names(self, folder: str) -> set[str]:
        """Names of the files that a folder has now."""
        with naming(self.name(folder)):
            try:
                return set(os.listdir(self.path / folder))  # noqa: PTH208
            except FileNotFoundError:
                return set()

    def remove(self, place: str) -> None:
        """Remove a file, if it is there."""
        with naming(self.name(place)):
            (self.path / place).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with its files, if it is there."""
        with naming(self.name(folder)), suppress(FileNotFoundError):
            shutil.rmtree(self.path / folder)

    def draft(self, place: str) -> IO[bytes]:
        """A file of this machine with a name, to write what will be at a place."""
        path = self.path / place
        with naming(str(path)):
            return path.with_suffix(f"{_PARTIAL}{path.suffix}").open("wb")

    def publish(self, draft: IO[bytes], place: str) -> None:
        """Let a draft appear at its place, whole; the draft may be gone afterwards."""
        with naming(self.name(place)):
            draft.flush()
            Path(draft.name).replace(self.path / place)

    def clean(self, folder: str) -> int:
        """Remove what killed runs have left in the folders of a folder, and count it."""
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
    """A folder in a store, whose objects are there once they are written to their end; methods are `LocalFolder`'s.

    Args:
        out: Its URL.
    """

    def __init__(self, out: str) -> None:
        self._url = out
        self._system, self._root = storage.resolve(out, "out", OutputError)
        self._listed: dict[str, NDArray[np.bytes_]] = {}

    def _at(self, place: str) -> str:
        return f"{self._root}/{place}"

    def name(self, place: str) -> str:  # noqa: D102
        return f"{self._url.rstrip('/')}/{place}"

    def _reaching(self, place: str, to_be: str) -> AbstractContextManager[None]:
        return translate_errors(OutputError, f"out must be {to_be}, {self.name(place)!r} is not")

    def write(self, place: str, data: bytes) -> None:  # noqa: D102
        self._upload(place, [data])

    def mark(self, place: str) -> None:  # noqa: D102
        self._upload(place, [])

    def _upload(self, place: str, blocks: Iterable[bytes]) -> None:
        try:
            with self._reaching(place, "writable"), self._system.open(self._at(place), "wb") as stream:
                for block in blocks:
                    stream.write(block)
        except BaseException:
            with suppress(Exception):  # closing the stream may have kept what was written so far
                self._system.rm_file(self._at(place))
            raise

    def read(self, place: str) -> bytes | None:  # noqa: D102
        with self._reaching(place, "readable"):
            try:
                with self._system.open(self._at(place), "rb") as stream:
                    data: bytes = stream.read()
                    return data
            except FileNotFoundError:
                return None

    def open(self, place: str) -> Any:  # noqa: D102
        return self._system.open(self._at(place), "rb")

    def had(self, place: str) -> bool:  # noqa: D102
        folder, _, text = place.rpartition("/")
        if folder not in self._listed:  # a thousand names in an answer; a million of them take 40 MB
            self._listed[folder] = np.sort(np.array([name.encode() for name in self.names(folder)], np.bytes_))
        names, name = self._listed[folder], text.encode()
        at = bisect_left(names, name)
        return at < len(names) and bool(names[at] == name)

    def has(self, place: str) -> bool:  # noqa: D102
        with self._reaching(place, "readable"):
            return bool(self._system.isfile(self._at(place)))

    def names(self, folder: str) -> set[str]:  # noqa: D102
        with self._reaching(folder, "readable"):
            try:
                infos = self._system.ls(self._at(folder), detail=True)
            except FileNotFoundError:
                return set()
            return {posixpath.basename(info["name"]) for info in infos if info["type"] == "file"}

    def remove(self, place: str) -> None:  # noqa: D102
        with self._reaching(place, "writable"), suppress(FileNotFoundError):
            self._system.rm_file(self._at(place))

    def remove_folder(self, folder: str) -> None:  # noqa: D102
        with self._reaching(folder, "writable"), suppress(FileNotFoundError):
            self._system.rm(self._at(folder), recursive=True)

    def draft(self, place: str) -> IO[bytes]:  # noqa: D102, ARG002
        with naming(tempfile.gettempdir(), "TMPDIR"):
            return tempfile.NamedTemporaryFile(prefix="maskjet-")

    def publish(self, draft: IO[bytes], place: str) -> None:  # noqa: D102
        draft.flush()
        with Path(draft.name).open("rb") as file:
            self._upload(place, iter(lambda: file.read(_BLOCK), b""))

    def clean(self, folder: str) -> int:  # noqa: D102, ARG002
        return 0  # an object that was not written to its end has never been there


Folder = LocalFolder | RemoteFolder


def open_folder(out: str) -> Folder:
    """The folder at a path or URL; nothing is made yet.

    Raises:
        InputError: It is a URL that holds a secret, or that neither pyarrow nor fsspec has a file system for.
        OutputError: The store can't be reached.
        MissingDependencyError: The package for such a URL is not installed.
    """
    return RemoteFolder(out) if storage.is_remote(out) else LocalFolder(out)
