"""Files where they lie: on this machine, or in a store that pyarrow or fsspec reaches by a URL.

In a URL, names are percent-encoded, as everywhere: a blank is %20, # is %23, ? is %3F. Those that people write without
that, as in `s3://bucket/my videos/a.mp4`, are encoded here, so that an object has one URL.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote

from maskjet.errors import InputError, MaskjetError, OutputError, SourceError, explain, first_line
from maskjet.extras import require
from maskjet.jobs.segments import SourceFile
from maskjet.media.containers import shown_name

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

KEPT_BYTES = 8 << 30
"""Bytes of copies that a process keeps for the next segments of the same objects; one in use is kept anyway."""
_BLOCK = 8 << 20
_SECOND = 1_000_000_000
_OF_PYARROW = ("abfs", "abfss", "file", "gcs", "gs", "hdfs", "s3", "viewfs")
_OF_THE_WEB = ("http", "https")
_LIVE = ("mms", "mmsh", "mmst", "rtmp", "rtmpe", "rtmps", "rtmpt", "rtp", "rtsp", "rtsps", "srt", "srtp", "tcp", "udp")
# Parameters of pyarrow's file systems that hold no secret. Others may: client_secret, or a signature for Azure.
_PARAMETERS = frozenset(
    {
        *("allow_bucket_creation", "allow_bucket_deletion", "blob_storage_authority", "blob_storage_scheme"),
        *("client_id", "credential_kind", "default_bucket_location", "dfs_storage_authority", "dfs_storage_scheme"),
        *("enable_tls", "endpoint_override", "force_virtual_addressing", "project_id", "region", "replication"),
        *("retry_limit_seconds", "scheme", "tenant_id", "tls_ca_file_path"),
    }
)
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?", re.DOTALL)
_UNRESERVED = "/-._~!$&'()*+,;=:@"  # of a path, by RFC 3986


def is_remote(name: str) -> bool:
    """Whether a name is a URL rather than a path."""
    return bool(_URL.match(name))


@dataclass(frozen=True)
class Address:
    """A URL that holds no secret, in parts."""

    scheme: str
    """In lower case: "s3"."""
    host: str
    """Up to the path: a bucket, or a host with its port."""
    path: str
    """Percent-encoded; begins with a slash, unless it is empty."""
    query: str = ""
    """Parameters of the store, without the question mark."""

    def __str__(self) -> str:
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.host}{self.path}{query}"

    @property
    def root(self) -> Address:
        """The address of the store."""
        return Address(self.scheme, self.host, "/", self.query)

    def child(self, name: str) -> Address:
        """The address of an object in this folder, by its name, which is not encoded."""
        path = f"{self.path.rstrip('/')}/{encode(name)}"
        return Address(self.scheme, self.host, path, self.query)


def parse(url: str, name: str = "source") -> Address:
    """Take a URL apart.

    Args:
        url: The URL.
        name: Name of the argument that gave it, for errors.

    Raises:
        InputError: It holds a secret, which would end up in every part, or can't be taken apart.
        SourceError: It is a live source.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise InputError(f"{name} must be a URL, got {url!r}.")
    scheme, host, path, query, fragment = match[1].lower(), match[2], match[3], match[4] or "", match[5]
    if scheme in _LIVE:
        raise live_error(url)
    if "\0" in url:
        raise InputError(f"{name} must be a URL without NUL characters, got {shown_name(url)!r}.")
    user = host.rpartition("@")[0]
    # Any user of S3 or the web is a secret, or half of one; an account of Azure or a user of SFTP is not.
    if ":" in user or (user and scheme in ("s3", *_OF_THE_WEB)):
        raise InputError(
            f"{name} must be a URL without credentials, got {shown_name(url)!r} with them: it would be written into "
            "the results. Put them into the environment or the files that the store's own tools read."
        )
    if fragment is not None:
        raise InputError(f"{name} must be a URL without a fragment, got {shown_name(url)!r}: write # as %23.")
    if "::" in host + path:
        raise InputError(f"{name} must be a URL of one store, {shown_name(url)!r} chains several.")
    for parameter, value in parse_qsl(query, keep_blank_values=True, errors="surrogateescape"):
        if parameter not in _PARAMETERS or scheme not in _OF_PYARROW or "@" in value:
            raise InputError(
                f"{name} must be a URL whose parameters hold no secret, got {parameter!r} in {shown_name(url)!r}: the "
                "URL would be written into the results. Write ? as %3F if it is part of a name."
            )
    # On the web %2F and / may be two files; a store's names are decoded.
    path = quote(path, safe=_UNRESERVED + "%") if scheme in _OF_THE_WEB else encode(decode(path))
    return Address(scheme, host, path, query)


def encode(name: str) -> str:
    """A name as it is written in a URL's path."""
    return quote(name, safe=_UNRESERVED, errors="surrogateescape")


def decode(path: str) -> str:
    """A URL's path as its names are."""
    return unquote(path, errors="surrogateescape")


def live_error(name: str) -> SourceError:
    """The error for a source that has no end."""
    return SourceError(
        f"source must have an end, {shown_name(name)!r} is a camera or a live stream: use `maskjet run` or "
        "`maskjet serve`."
    )


def resolve(url: str, name: str = "source", error: type[MaskjetError] = SourceError) -> tuple[FileSystem, str]:
    """Find the file system that a URL is of, and the path in it.

    pyarrow's own file systems come first, then fsspec's. Both find credentials where the store's own tools do.

    Args:
        url: The URL.
        name: Name of the argument that gave it, for errors.
        error: Class of the error for a store that can't be reached.

    Raises:
        InputError: The URL holds a secret, or its scheme is not known.
        SourceError: The store can't be reached; or another `error`.
        MissingDependencyError: pyarrow, fsspec, or what fsspec needs for this store is not installed.
    """
    address = parse(url, name)
    require("pyarrow.fs", extra="jobs", purpose=f"A {name} at a URL")
    with reaching(url, name, error):
        system, root = _system_at(address.root)
        if address.scheme in _OF_THE_WEB:  # their paths are URLs
            return system, str(address)
        path = decode(address.path).strip("/")
        path.encode()  # stores have names in UTF-8 alone; what raises here is told as the reason
        return system, f"{root.rstrip('/')}/{path}" if root else path


@lru_cache(maxsize=64)
def _system_at(root: Address) -> tuple[FileSystem, str]:
    """The file system of a store, and the path of its root in it; S3 asks the network for a bucket's region."""
    from pyarrow import fs

    if root.scheme in _OF_PYARROW:
        system, path = fs.FileSystem.from_uri(str(root))
        return system, path
    fsspec: Any = require("fsspec", extra="jobs", purpose=f"A source at {root.scheme}://")
    known = fsspec.available_protocols()
    if root.scheme not in known:
        schemes = ", ".join(sorted({*_OF_PYARROW, *known}))
        raise InputError(f"source must be a path or a URL of a known scheme, got {root.scheme!r}; known: {schemes}.")
    system, path = fsspec.core.url_to_fs(str(root))
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path


@contextmanager
def reaching(url: str, name: str = "source", error: type[MaskjetError] = SourceError) -> Iterator[None]:
    """Turn any exception of pyarrow, fsspec or what they call into an error that names the URL."""
    try:
        yield
    except MaskjetError:
        raise
    except Exception as foreign:
        reason = first_line(foreign) if not isinstance(foreign, OSError) else explain(foreign).splitlines()[0]
        raise error(f"{name} must be reachable, {shown_name(url)!r} is not: {reason.rstrip('.')}.") from foreign


def look(url: str) -> FileInfo:
    """A store's entry of an object or folder.

    Raises:
        SourceError: The store can't be reached.
    """
    system, path = resolve(url)
    with reaching(url):
        return system.get_file_info(path)


def as_file(url: str, info: FileInfo) -> SourceFile:
    """An object as its store describes it.

    The time is in whole seconds, as stores tell parts of them in listings alone; 0 if the store tells none.

    Raises:
        SourceError: The store does not tell its size.
    """
    if info.size is None:
        raise SourceError(
            f"source must have a size, the store of {shown_name(url)!r} states none. If it is a live stream, use "
            "`maskjet run` or `maskjet serve`."
        )
    return SourceFile(url, info.size, (info.mtime_ns or 0) // _SECOND * _SECOND)


def check_unchanged(file: SourceFile) -> None:
    """Check that a file is the one that was planned.

    Raises:
        SourceError: Its size or time is another, or it can't be read.
    """
    if is_remote(file.path):
        info = look(file.path)
        found = as_file(file.path, info) if info.is_file else None
    else:
        found = stat_file(file.path)
    if found is None:
        raise SourceError(f"source must exist, {shown_name(file.path)!r} does not.")
    if found != file:
        raise _changed(file)


def stat_file(path: str) -> SourceFile | None:
    """A local file as it is now; None if it does not exist.

    Raises:
        SourceError: The system does not tell.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - a million times
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise SourceError(f"source must be readable, {path!r} is not: {explain(error)}.") from error
    return SourceFile(path, found.st_size, found.st_mtime_ns)


def _changed(file: SourceFile) -> SourceError:
    return SourceError(
        f"source must stay as it is, {shown_name(file.path)!r} has changed since the job was planned: run it again."
    )


@contextmanager
def local_copy(file: SourceFile) -> Iterator[str]:
    """Have a file on this machine while the block runs.

    A local file is given as it is. An object is copied once for all threads, and its copy kept for the next segments,
    at most `KEPT_BYTES` of them; the process removes them at its end.

    Raises:
        SourceError: The object can't be read, or has another size than planned.
        OutputError: There is no room for the copy.
    """
    if not is_remote(file.path):
        yield file.path
        return
    with _COPIES.lend(file) as path:
        yield path


@dataclass(eq=False)
class _Copy:
    file: SourceFile
    users: int = 0
    path: Path | None = None
    copying: threading.Lock = field(default_factory=threading.Lock)


class _Copies:
    """Copies of objects in a folder of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: OrderedDict[SourceFile, _Copy] = OrderedDict()  # the one used last at the end
        self._folder: Path | None = None
        self._made = 0

    @contextmanager
    def lend(self, file: SourceFile) -> Iterator[str]:
        with self._lock:
            copy = self._copies.setdefault(file, _Copy(file))
            self._copies.move_to_end(file)
            copy.users += 1
        try:
            with copy.copying:
                if copy.path is None:
                    path = self._new_path(file)
                    self._make_room()
                    _fetch(file, path)
                    copy.path = path
            yield str(copy.path)
        finally:
            with self._lock:
                copy.users -= 1
                if copy.path is None and not copy.users:
                    del self._copies[file]
            self._make_room()

    def _new_path(self, file: SourceFile) -> Path:
        with self._lock:
            if self._folder is None:
                try:
                    self._folder = Path(tempfile.mkdtemp(prefix="maskjet-copies-"))
                except OSError as error:
                    raise _no_room(Path(tempfile.gettempdir()), error) from error
                atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
            self._made += 1
            # Readers look at the suffix.
            suffix = PurePosixPath(decode(parse(file.path).path)).suffix
            suffix = suffix if re.fullmatch(r"\.\w{1,16}", suffix, re.ASCII) else ""
            return self._folder / f"{self._made}{suffix}"

    def _make_room(self) -> None:
        """Remove the copies that were not used for longest, as long as there are too many bytes."""
        with self._lock:
            total = sum(copy.file.size for copy in self._copies.values())
            for copy in list(self._copies.values()):
                if total <= KEPT_BYTES:
                    return
                if not copy.users:
                    total -= copy.file.size
                    del self._copies[copy.file]
                    assert copy.path is not None
                    copy.path.unlink(missing_ok=True)


_COPIES = _Copies()


def _fetch(file: SourceFile, path: Path) -> None:
    """Copy an object to a path, at which nothing is left if that fails."""
    system, place = resolve(file.path)
    try:
        with reaching(file.path), system.open_input_stream(place) as stream:
            _write(stream, path, file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _write(stream: Any, path: Path, source: SourceFile) -> None:
    """Write an object's stream to a path; raises as soon as it has another size than planned."""
    size = 0
    try:
        file = path.open("xb")
    except OSError as error:
        raise _no_room(path, error) from error
    with file:
        while size <= source.size and (block := stream.read(_BLOCK)):
            try:
                file.write(block)
                file.flush()
            except OSError as error:
                raise _no_room(path, error) from error
            size += len(block)
    if size != source.size:
        raise _changed(source)


def _no_room(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"The folder of temporary files must have room for a copy, {str(path)!r} can't be written: {explain(error)}. "
        "Set TMPDIR to another one."
    )
