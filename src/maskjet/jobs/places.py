"""Folders on this machine and in stores, listed in one way."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from maskjet.errors import SourceError, explain
from maskjet.jobs import storage
from maskjet.jobs.segments import SourceFile
from maskjet.media.folders import mode_of

Kind = Literal["file", "folder"]


@dataclass(frozen=True)
class Listing:
    """The names in a folder, in no order, without FIFOs, sockets and devices."""

    folder: str
    """Its path or URL."""
    files: Sequence[str]
    """Names of files, and of links to nothing."""
    folders: Sequence[str]
    """Names of folders, and of links to folders."""
    described: Mapping[str, SourceFile] = field(default_factory=dict)
    """The files by name, where the listing describes them."""


class Place(Protocol):
    """A file system. Paths are absolute, or URLs."""

    def kind(self, path: str) -> Kind | None:
        """What a path names; None if nothing.

        Raises:
            SourceError: It can't be read, or is a FIFO, socket or device.
        """

    def list(self, folder: str) -> Listing:
        """List a folder.

        Raises:
            SourceError: It can't be read.
        """

    def child(self, folder: str, name: str) -> str:
        """The path of what has a name in a folder."""

    def identity(self, path: str) -> str:
        """A path that all names of one file or folder have in common."""

    def is_link(self, path: str) -> bool:
        """Whether a path is a symbolic link."""

    def describe(self, path: str) -> SourceFile | None:
        """A file as it is now; None if it does not exist.

        Raises:
            SourceError: It can't be read.
        """


class Disk:
    """The file systems of this machine."""

    def kind(self, path: str) -> Kind | None:
        """See `Place.kind`."""
        mode = mode_of(path)
        if mode is None:
            return None
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):  # reading it might wait for ever
            raise SourceError(f"source must be a file or a folder, {path!r} is a FIFO, socket or device.")
        return "folder" if stat.S_ISDIR(mode) else "file"

    def list(self, folder: str) -> Listing:
        """See `Place.list`."""
        files: list[str] = []
        folders: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    kind = _kind_of(entry)
                    if kind is not None:
                        (folders if kind == "folder" else files).append(entry.name)
        except OSError as error:
            raise SourceError(
                f"source must be readable, {error.filename or folder!r} is not: {explain(error)}."
            ) from error
        return Listing(folder, files, folders)

    def child(self, folder: str, name: str) -> str:
        """See `Place.child`."""
        return os.path.join(folder, name)  # noqa: PTH118 - a million times

    def identity(self, path: str) -> str:
        """See `Place.identity`."""
        return os.path.realpath(path)

    def is_link(self, path: str) -> bool:
        """See `Place.is_link`."""
        return Path(path).is_symlink()

    def describe(self, path: str) -> SourceFile | None:
        """See `Place.describe`."""
        return storage.stat_file(path)


def _kind_of(entry: os.DirEntry[str]) -> Kind | None:
    """A file, or a link to nothing or in a circle, which is not left out in silence; a folder; None if neither."""
    try:
        if entry.is_dir():
            return "folder"
        if entry.is_file() or (entry.is_symlink() and mode_of(entry.path) is None):
            return "file"
    except (OSError, SourceError):
        if entry.is_symlink():
            return "file"
        raise
    return None


class Store:
    """The stores that `storage.resolve` reaches."""

    def kind(self, path: str) -> Kind | None:
        """See `Place.kind`."""
        if not storage.resolve(path)[1].strip("/"):
            return "folder"
        info = storage.look(path)
        return "file" if info.is_file else "folder" if info.type.name == "Directory" else None

    def list(self, folder: str) -> Listing:
        """See `Place.list`."""
        from pyarrow.fs import FileSelector, FileType

        system, path = storage.resolve(folder)
        with storage.reaching(folder):
            found = system.get_file_info(FileSelector(path))
        files: dict[str, SourceFile] = {}
        folders = []
        for info in found:
            if info.type == FileType.Directory:
                folders.append(info.base_name)
            elif info.is_file:
                files[info.base_name] = storage.as_file(self.child(folder, info.base_name), info)
        return Listing(folder, list(files), folders, files)

    def child(self, folder: str, name: str) -> str:
        """See `Place.child`."""
        return str(storage.parse(folder).child(name))

    def identity(self, path: str) -> str:
        """See `Place.identity`."""
        return path.rstrip("/")

    def is_link(self, path: str) -> bool:  # noqa: ARG002 - stores have none
        """See `Place.is_link`."""
        return False

    def describe(self, path: str) -> SourceFile | None:
        """See `Place.describe`."""
        info = storage.look(path)
        return storage.as_file(path, info) if info.is_file else None
