"""Source files: local ones by path, or objects in stores, reached by fsspec via URLs.

A URL has an object's name as it is, as in `s3://bucket/my videos/a#1.mp4`: nothing in it is percent-encoded.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from maskjet.errors import (
    InputError,
    MaskjetError,
    MissingDependencyError,
    SourceError,
    explain,
    first_line,
    translate_errors,
)
from maskjet.host.files import naming
from maskjet.jobs.segments import SourceFile
from maskjet.sources.containers import shown_name
from maskjet.sources.folders import scan_folder

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

KEPT_BYTES, KEPT_COPIES = 8 << 30, 64
"""Limits of a process's cache of object copies, not counting those in use: bytes, and number."""
_BLOCK = 8 << 20  # bytes per download block
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_OF_PYARROW = ("abfs", "abfss", "gcs", "gs", "hdfs", "s3", "viewfs")
_OF_THE_WEB = ("http", "https")
_KNOWN = sorted((*_OF_PYARROW, *_OF_THE_WEB, "file", "ftp", "hf", "memory", "sftp", "smb", "webhdfs"))
_LIVE = ("mms", "mmsh", "mmst", "rtmp", "rtmpe", "rtmps", "rtmpt", "rtp", "rtsp", "rtsps", "srt", "srtp", "tcp", "udp")

Kind = Literal["file", "folder"]
Files = dict[str, SourceFile | None]


def is_remote(name: str) -> bool:
    """Whether a name is a URL rather than a path."""
    return bool(_URL.match(name))


def split_url(url: str, name: str = "source") -> tuple[str, str]:
    """Split a URL after its host, as into "s3://bucket" and "/a.mp4"; `name` is the argument, for messages.

    Raises InputError if it may hold a secret, which would end up in every part, or has an unknown scheme; SourceError
    if it is a live source.
    """
    ((scheme, host, path),) = _URL.findall(url)
    scheme, shown = scheme.lower(), shown_name(url)
    if scheme in _LIVE:
        raise live_error(url)
    if "::" in url:
        raise InputError(f"{name} must be a URL of one store, {shown!r} chains several.")
    user = host.rpartition("@")[0]
    # A user in a URL of S3 or the web is a credential; an account of Azure or a user of SFTP is not.
    is_secret = ":" in user or (user and scheme in ("s3", *_OF_THE_WEB))
    if is_secret or re.search("[?#]", url if scheme in _OF_THE_WEB else host):
        raise InputError(
            f"{name} must be a URL without credentials and parameters, got {shown!r}: they would be written into the "
            "results. Put them into the environment or the files that the store's own tools read."
        )
    if scheme not in _KNOWN:
        known = ", ".join(_KNOWN)
        raise InputError(f"{name} must be a path or a URL of a known scheme, got {scheme!r}; known: {known}.")
    return f"{scheme}://{host}", path


def live_error(name: str) -> SourceError:
    """The error for a live source."""
    what = f"{shown_name(name)!r} is a camera or a live stream"
    return SourceError(f"source must have an end, {what}: use `maskjet run` or `maskjet serve`.")


def resolve(url: str, name: str = "source", error: type[MaskjetError] = SourceError) -> tuple[AbstractFileSystem, str]:
    """Find the file system of a URL or path and the path in it, with the credentials of the store's own tools.

    Raises `error` if the store can't be reached, MissingDependencyError if a package is missing; else as `split_url`.
    """
    if not is_remote(url):
        return _system_at("file://")[0], os.path.abspath(url)  # noqa: PTH100 - a million times
    root, path = split_url(url, name)
    with reaching(url, name, error):
        system, top = _system_at(root)
        if root.startswith(_OF_THE_WEB):  # for HTTP, fsspec uses URLs as paths
            return system, root + path
        path.encode()  # names in stores are UTF-8; the error explains itself
        return system, posixpath.join(top, path.strip("/"))


@lru_cache(maxsize=64)
def _system_at(root: str) -> tuple[AbstractFileSystem, str]:
    """Connect to a store; returns its file system and root path. For S3, a request finds the region."""
    scheme = root.partition(":")[0]
    try:
        import fsspec.implementations.arrow

        if scheme not in _OF_PYARROW:
            system, path = fsspec.core.url_to_fs(f"{root}/", use_listings_cache=False)
            return system, path
        import pyarrow.fs

        system, path = pyarrow.fs.FileSystem.from_uri(f"{root}/")
        wrap = fsspec.implementations.arrow.ArrowFSWrapper
        return wrap(system, use_listings_cache=False, skip_instance_cache=True), path
    except ImportError as error:
        why = f'{first_line(error)}; pip install "maskjet[jobs]" brings fsspec and pyarrow'
        raise MissingDependencyError(f"A file at {scheme}:// needs another package: {why}.") from error


def reaching(url: str, name: str = "source", error: type[MaskjetError] = SourceError) -> AbstractContextManager[None]:
    """Translate any exception of fsspec, pyarrow or their libraries to an error that names the URL."""
    return translate_errors(error, f"{name} must be reachable, {shown_name(url)!r} is not")


def look(path: str) -> tuple[Kind, SourceFile] | None:
    """Kind, size and time of a file or folder, None if it does not exist; both are 0 for a folder of a store.

    Raises SourceError if it can't be reached or read, or is a FIFO, socket or device.
    """
    if is_remote(path):
        system, place = resolve(path)
        with reaching(path):
            try:
                return _read_info(path, system.info(place))
            except FileNotFoundError:
                return None
    try:
        found = os.stat(path)  # noqa: PTH116 - a million times
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise SourceError(f"source must be readable, {path!r} is not: {explain(error)}.") from error
    is_folder = stat.S_ISDIR(found.st_mode)
    if not is_folder and not stat.S_ISREG(found.st_mode):  # reading a FIFO could block for ever
        raise SourceError(f"source must be a file or a folder, {path!r} is a FIFO, socket or device.")
    return "folder" if is_folder else "file", SourceFile(path, found.st_size, found.st_mtime_ns)


def _read_info(url: str, info: dict[str, Any]) -> tuple[Kind, SourceFile] | None:
    """Parse fsspec's info of an object or folder; None if it is neither."""
    if info["type"] != "file":
        return ("folder", SourceFile(url, 0, 0)) if info["type"] == "directory" else None
    if info["size"] is None:
        raise SourceError(f"source must have a size, the store of {shown_name(url)!r} states none.")
    time = info.get("mtime") or 0
    seconds = int(time.timestamp() if isinstance(time, datetime) else time)  # only listings have fractions of seconds
    return "file", SourceFile(url, info["size"], seconds * 1_000_000_000)


def describe(path: str) -> SourceFile | None:
    """Current size and time of a file or object; None if it does not exist. Raises as `look`."""
    kind, file = look(path) or (None, None)
    return file if kind == "file" else None


def check_unchanged(file: SourceFile) -> None:
    """Check that a file has the size and time with which it was planned, or raise SourceError."""
    if describe(file.path) != file:
        raise _changed(file)


def _changed(file: SourceFile) -> SourceError:
    what = f"{shown_name(file.path)!r} is gone or has changed since the job was planned"
    return SourceError(f"source must stay as it is, {what}: run it again.")


def list_folder(folder: str) -> tuple[Files, list[str]]:
    """List a folder, unordered: files by name, with size and time if the listing has them, and names of subfolders.

    Links to nothing are files; FIFOs, sockets and devices are left out. Raises SourceError if it can't be read.
    """
    if not is_remote(folder):
        names, folders = scan_folder(folder)  # fsspec would stat each file
        return dict.fromkeys(names), folders
    files: Files = {}
    folders = []
    system, path = resolve(folder)
    with reaching(folder):
        for info in system.ls(path, detail=True):
            name = posixpath.basename(info["name"].rstrip("/"))
            kind, file = _read_info(posixpath.join(folder, name), info) or (None, None)
            if kind == "folder":
                folders.append(name)
            elif kind == "file":
                files[name] = file
    return files, folders


@contextmanager
def local_copy(file: SourceFile) -> Iterator[str]:
    """Yield a local path of a file: its own, or that of a downloaded copy, shared by threads.

    Copies are cached for later segments, and vanish with the process, however it ends. Raises SourceError if the
    object can't be read or has another size than planned, OutputError if there is no room.
    """
    if not is_remote(file.path):
        yield file.path
        return
    with _lock:
        copy = _used.setdefault(file, _Copy())
    with copy.filling:
        if not copy.path:
            copy.fill(file)
    with _lock:
        _kept[file] = copy
        _kept.move_to_end(file)
        while len(_kept) > KEPT_COPIES or sum(each.size for each in _kept) > KEPT_BYTES:
            _kept.popitem(last=False)
    yield copy.path


class _Copy:
    """Downloaded object in an unnamed temporary file, which is closed with this."""

    def __init__(self) -> None:
        self.path, self.filling = "", threading.Lock()

    def fill(self, file: SourceFile) -> None:
        """Download an object; raises as soon as its size differs from the planned one."""
        (system, path), size = resolve(file.path), 0
        with ExitStack() as opened:
            with naming(tempfile.gettempdir(), "TMPDIR"):  # unbuffered: closing can't fail
                copy = opened.enter_context(tempfile.TemporaryFile(buffering=0))
            with reaching(file.path), system.open(path, "rb") as stream:
                while size <= file.size and (block := stream.read(_BLOCK)):
                    size += len(block)
                    with naming(tempfile.gettempdir(), "TMPDIR"):
                        while block := block[copy.write(block) :]:  # a nearly full disk accepts less
                            pass
            if size != file.size:
                raise _changed(file)
            self.path = f"/proc/self/fd/{copy.fileno()}"
            weakref.finalize(self, opened.pop_all().close)


_lock = threading.Lock()
_used: weakref.WeakValueDictionary[SourceFile, _Copy] = weakref.WeakValueDictionary()
_kept: OrderedDict[SourceFile, _Copy] = OrderedDict()  # least recently used first
