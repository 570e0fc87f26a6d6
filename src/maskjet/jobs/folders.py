"""The output folder of a job: a local one, or one in an object store."""

from __future__ import annotations

import fcntl
import os
import posixpath
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from maskjet.errors import InputError, OutputError
from maskjet.host.files import naming, replacing
from maskjet.jobs import storage

LOCK = "job.lock"
_ATOMIC = ("abfs", "abfss", "gcs", "gs", "hf", "s3")  # schemes of stores where an object appears when its upload ends


class Folder:
    """An output folder on a local or mounted file system, or in an object store; nothing is created.

    A file is named by its place, its path below the folder, as in "parts/ab/abcd.parquet". Raises InputError for a URL
    that holds a secret, or of a store where an object appears before its upload ends; methods raise OutputError if the
    folder can't be reached, written to, read or listed.
    """

    def __init__(self, out: str) -> None:
        self._out = out.rstrip("/")
        self._path = None if storage.is_remote(out) else Path(out)
        if self._path is None and (scheme := out.partition(":")[0].lower()) not in _ATOMIC:
            raise InputError(
                f"out must be a path or a URL of {', '.join(_ATOMIC)}, got {scheme}: elsewhere a killed upload may "
                "leave half a file. Choose a folder of this machine, or one that it has mounted."
            )
        self._system, root = storage.resolve(out, "out", OutputError)
        self._root = root.rstrip("/")
        self._listed: dict[str, set[str]] = {}

    @property
    def scratch(self) -> tuple[str, str]:
        """Folder for temporary files without a name, and the argument that names it."""
        return (tempfile.gettempdir(), "TMPDIR") if self._path is None else (str(self._path), "out")

    def name(self, place: str) -> str:
        """Path or URL of a file."""
        return f"{self._out}/{place}"

    def _at(self, place: str) -> str:
        return f"{self._root}/{place}"

    def _reaching(self, place: str) -> AbstractContextManager[None]:
        return storage.reaching(self.name(place), "out", OutputError)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for a job, and make it; the lock ends with the process. Stores have no locks.

        Raises OutputError if another job has it, or it can't be written to.
        """
        if self._path is None:
            self.write(LOCK, b"")  # an error comes now, not with the first part
            self.remove(LOCK)
            yield
            return
        with naming(str(self._path)):
            self._path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with naming(str(self._path)):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    owner = os.pread(descriptor, 100, 0).decode(errors="replace")
                    raise OutputError(
                        f"out must not be in use, {str(self._path)!r} is: process {owner!r} works on it. Wait for it, "
                        "or choose another folder."
                    ) from None
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode())
            yield
        finally:
            os.close(descriptor)

    def write(self, place: str, data: bytes | Iterable[bytes]) -> None:
        """Write a file, given in one piece or in blocks; an error or a loss of power leaves nothing of it."""
        blocks = [data] if isinstance(data, bytes) else data
        if self._path is not None:
            # Without a suffix, as programs should not pick up the temporary file.
            with replacing(self._path / place, suffix="") as temporary:
                for block in blocks:
                    temporary.write(block)
            return
        try:
            with self._reaching(place), self._system.open(self._at(place), "wb") as stream:
                for block in blocks:
                    stream.write(block)
        except BaseException:
            with suppress(Exception):  # closing the stream may have published a truncated object
                self._system.rm_file(self._at(place))
            raise

    def read(self, place: str) -> bytes | None:
        """Content of a file; None if it does not exist."""
        with self._reaching(place), suppress(FileNotFoundError), self.open(place) as file:
            data: bytes = file.read()
            return data
        return None

    def open(self, place: str) -> Any:
        """Open a file for binary reading; raises the exceptions of Python, fsspec or pyarrow."""
        return self._system.open(self._at(place), "rb")

    def had(self, place: str) -> bool:
        """Whether a file exists; in a store according to a listing made at the first call per folder."""
        if self._path is not None:
            return os.path.exists(self._at(place))  # noqa: PTH110 - a million times
        folder, _, name = place.rpartition("/")
        if folder not in self._listed:  # a thousand names per request
            self._listed[folder] = self.names(folder)
        return name in self._listed[folder]

    def names(self, folder: str) -> set[str]:
        """Names of the files in a folder now."""
        with self._reaching(folder), suppress(FileNotFoundError):
            infos = self._system.ls(self._at(folder), detail=True)
            return {posixpath.basename(info["name"]) for info in infos if info["type"] == "file"}
        return set()

    def remove(self, place: str) -> None:
        """Remove a file, or a folder with its files, if it exists."""
        with self._reaching(place), suppress(FileNotFoundError):
            self._system.rm(self._at(place), recursive=True)

    def clean(self, folder: str) -> None:
        """Remove the temporary files of killed runs from a locked folder; interrupted uploads leave no object."""
        if self._path is not None:
            with naming(str(self._path)):
                for path in chain(self._path.glob(f"{folder}/*/*.partial*"), self._path.glob("segments.partial*")):
                    path.unlink(missing_ok=True)
