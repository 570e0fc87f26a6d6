"""The output folder of a job: a local one, or one in an object store."""

from __future__ import annotations

import fcntl
import json
import os
import posixpath
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from maskjet.errors import InputError, OutputError, translate_errors
from maskjet.host.files import naming, replacing
from maskjet.jobs import storage

LOCK = "job.lock"
_PARTIAL = ".partial"
_BLOCK = 8 << 20
_ATOMIC = ("abfs", "abfss", "gcs", "gs", "hf", "s3")  # schemes of stores where an object appears when its upload ends


class LocalFolder:
    """An output folder on a local or mounted file system.

    A file is named by its place, its path below the folder, as in "parts/ab/abcd.parquet". Methods raise OutputError
    if the folder can't be written to, read or listed.
    """

    def __init__(self, out: str) -> None:
        self.path = Path(out)

    def name(self, place: str) -> str:
        """Path or URL of a file."""
        return str(self.path / place)

    @contextmanager
    def lock(self, run: str) -> Iterator[None]:  # noqa: ARG002
        """Lock the folder for a run of a job, and make it; the lock ends with the process.

        Raises OutputError if another job has it.
        """
        with naming(str(self.path)):
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with naming(str(self.path)):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise _in_use(str(self.path), os.pread(descriptor, 4096, 0)) from None
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
            yield
        finally:
            os.close(descriptor)

    def check(self, run: str) -> None:
        """Raise OutputError if a later run has taken over the folder; impossible with a lock."""

    def write(self, place: str, data: bytes) -> None:
        """Write a file atomically, and sync it to disk; an error leaves nothing of it."""
        path = self.path / place
        with replacing(path, suffix="") as temporary:  # no suffix: programs should not pick up the temporary file
            temporary.write(data)
        with naming(str(path)):
            for folder in (path.parent, *(each for each in path.parent.parents if each.is_relative_to(self.path))):
                _sync_folder(folder)  # any of these folders may be new

    def read(self, place: str) -> bytes | None:
        """Content of a file; None if it does not exist."""
        with naming(self.name(place)):
            try:
                return (self.path / place).read_bytes()
            except FileNotFoundError:
                return None

    def open(self, place: str) -> Any:
        """Open a file for binary reading; raises the exceptions of Python or pyarrow."""
        return (self.path / place).open("rb")

    def had(self, place: str) -> bool:
        """Whether a file exists; in a store according to a listing made at the first call per folder."""
        path = os.path.join(self.path, place)  # noqa: PTH118 - a million times
        with naming(path):
            try:
                os.stat(path)  # noqa: PTH116
            except FileNotFoundError:
                return False
            return True

    def names(self, folder: str) -> set[str]:
        """Names of the files in a folder now."""
        with naming(self.name(folder)):
            try:
                return set(os.listdir(self.path / folder))  # noqa: PTH208
            except FileNotFoundError:
                return set()

    def remove(self, place: str) -> None:
        """Remove a file if it exists."""
        with naming(self.name(place)):
            (self.path / place).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with its files if it exists."""
        with naming(self.name(folder)), suppress(FileNotFoundError):
            shutil.rmtree(self.path / folder)

    def open_temporary(self, place: str) -> IO[bytes]:
        """Open a named temporary file, for `publish` to move or upload to its final path."""
        path = self.path / place
        with naming(str(path)):
            return path.with_suffix(f"{_PARTIAL}{path.suffix}").open("wb")

    def publish(self, temporary: IO[bytes], place: str) -> None:
        """Move or upload a temporary file to its final path, atomically; it may be gone afterwards."""
        with naming(self.name(place)):
            temporary.flush()
            Path(temporary.name).replace(self.path / place)

    def clean(self, folder: str) -> None:
        """Remove the temporary files of killed runs from the subfolders of a folder, which must be locked."""
        root = self.path / folder
        with naming(str(root)):
            for path in root.glob(f"*/*{_PARTIAL}*"):
                path.unlink(missing_ok=True)


def _in_use(folder: str, content: bytes) -> OutputError:
    owner = "another process"
    with suppress(KeyError, TypeError, ValueError):
        facts = json.loads(content)
        owner = f"process {int(facts['pid'])} on {str(facts['host'])[:100]!r}"
    return OutputError(
        f"out must not be in use, {folder!r} is: {owner} works on it. Wait for it, or choose another folder."
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RemoteFolder:
    """An output folder in an object store, where an object appears when its upload ends; methods as `LocalFolder`'s."""

    def __init__(self, out: str) -> None:
        self._url = out
        self._system, self._root = storage.resolve(out, "out", OutputError)
        self._listed: dict[str, set[str]] = {}

    def _at(self, place: str) -> str:
        return f"{self._root}/{place}"

    def name(self, place: str) -> str:  # noqa: D102
        return f"{self._url.rstrip('/')}/{place}"

    @contextmanager
    def lock(self, run: str) -> Iterator[None]:
        """Name the run that works on the folder; a store has no locks, so a later one takes over."""
        self.write(LOCK, run.encode())
        try:
            yield
        finally:
            with suppress(OutputError):
                self.check(run)
                self.remove(LOCK)

    def check(self, run: str) -> None:  # noqa: D102
        if self.read(LOCK) != run.encode():
            place = self.name("")
            raise OutputError(f"out must not be in use, {place!r} is: a later job works on it, in place of this one.")

    def _reaching(self, place: str, to_be: str) -> AbstractContextManager[None]:
        return translate_errors(OutputError, f"out must be {to_be}, {self.name(place)!r} is not")

    def write(self, place: str, data: bytes) -> None:  # noqa: D102
        self._upload(place, [data])

    def _upload(self, place: str, blocks: Iterable[bytes]) -> None:
        try:
            with self._reaching(place, "writable"), self._system.open(self._at(place), "wb") as stream:
                for block in blocks:
                    stream.write(block)
        except BaseException:
            with suppress(Exception):  # closing the stream may have published a truncated object
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
        folder, _, name = place.rpartition("/")
        if folder not in self._listed:  # a thousand names per request
            self._listed[folder] = self.names(folder)
        return name in self._listed[folder]

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

    def open_temporary(self, place: str) -> IO[bytes]:  # noqa: D102, ARG002
        with naming(tempfile.gettempdir(), "TMPDIR"):
            return tempfile.NamedTemporaryFile(prefix="maskjet-")

    def publish(self, temporary: IO[bytes], place: str) -> None:  # noqa: D102
        temporary.flush()
        with Path(temporary.name).open("rb") as file:
            self._upload(place, iter(lambda: file.read(_BLOCK), b""))

    def clean(self, folder: str) -> None:
        """Do nothing: interrupted uploads leave no object."""


Folder = LocalFolder | RemoteFolder


def open_folder(out: str) -> Folder:
    """The output folder at a path or URL; creates nothing.

    Raises:
        InputError: It is a URL that holds a secret, or of a store where an object appears before its upload ends.
        OutputError: The store can't be reached.
        MissingDependencyError: The package for such a URL is not installed.
    """
    if not storage.is_remote(out):
        return LocalFolder(out)
    if (scheme := out.partition(":")[0].lower()) not in _ATOMIC:
        raise InputError(
            f"out must be a path or a URL of {', '.join(_ATOMIC)}, got {scheme}: elsewhere a killed upload may leave "
            "half a file. Choose a folder of this machine, or one that it has mounted."
        )
    return RemoteFolder(out)
