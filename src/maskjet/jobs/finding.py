"""Finding the files of sources (folders, globs, lists, URLs), one at a time."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskjet.errors import InputError, SourceError
from maskjet.host.files import is_file_url, path_of_url
from maskjet.jobs import storage
from maskjet.jobs.segments import SourceFile
from maskjet.jobs.storage import Files
from maskjet.sources.containers import is_camera, shown_name
from maskjet.sources.folders import in_order, is_image_path, is_video_path, is_visible, walk

_LONGEST_LINE = 1 << 16  # bytes; a file with a longer one is no list


@dataclass(frozen=True)
class Found:
    """A source file, with its kind."""

    file: SourceFile
    """The file; size and time are 0 if it is missing."""
    is_video: bool
    """Whether the file is a video, not an image."""
    is_missing: bool = False
    """Whether the file does not exist, or its size can't be read."""


def hash_path(path: str) -> int:
    """64-bit hash of a path, the same in every process."""
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest())


class Finder:
    """Finds the files of sources, as `plan` takes them: each once, in an order that depends on names alone."""

    def __init__(self, sources: Any, *, recursive: bool) -> None:
        self._sources, self._recursive = list[str](), recursive
        self._seen: set[int] = set()  # hashes of the files found, but for a single folder, which has none twice
        if isinstance(sources, str | os.PathLike | int):
            sources = [sources]
        if not isinstance(sources, Iterable) or isinstance(sources, bytes):
            raise InputError(f"sources must be a path, a URL or a list of these, got {type(sources).__name__}.")
        base = str(Path("list").absolute())
        for each in sources:
            if isinstance(each, int) and not isinstance(each, bool):
                raise storage.live_error(f"camera {each}")
            if not isinstance(each, str | os.PathLike) or isinstance(text := os.fspath(each), bytes):
                raise InputError(f"sources must be paths or URLs, got {type(each).__name__}.")
            self._sources.append(_absolute(text, base))
        if not self._sources:
            raise InputError("sources must be at least one, got none.")

    def __iter__(self) -> Iterator[Found]:
        """Check all sources, as far as that is cheap, then yield the files; raises SourceError as `plan`."""
        for origin, text in self._lines():
            with _naming(origin):
                self._check(text, is_line=bool(origin))
        for origin, text in self._lines():
            with _naming(origin):
                yield from self._find(text)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yield (origin, source) pairs; lists are expanded to their lines. The origin prefixes error messages."""
        for text in self._sources:
            if _is_list(text) and (file := storage.describe(text)):
                yield from _read_list(file)
            else:
                yield "", text

    def _check(self, text: str, *, is_line: bool) -> None:
        """Check that a source exists and, if it is a local folder or glob, has files."""
        is_remote = storage.is_remote(text)
        if is_line and is_remote:
            storage.resolve(text)  # a request for each object of a list would take as long as the job
        elif (kind := _kind_of(text)) is None:
            raise SourceError(f"source must exist, {shown_name(text)!r} does not.")
        elif kind != "file" and not is_remote:
            next(Finder(text, recursive=self._recursive)._find(text))

    def _find(self, text: str) -> Iterator[Found]:
        """Yield the files of a file, folder or glob that were not found before: of each folder images, then videos."""
        kind = _kind_of(text)
        if kind is None or kind == "file":
            if self._is_new(_identity(text)):
                yield _describe(text)
            return
        has_one_folder = kind == "folder" and self._sources == [text]
        is_empty = True
        for folder, files in self._match(*((text, []) if kind == "folder" else _split_glob(text))):
            is_empty = is_empty and not files
            real = _identity(folder)
            for name in sorted(in_order(files), key=is_image_path, reverse=True):
                if has_one_folder or self._is_new(posixpath.join(real, name)):
                    yield _describe(posixpath.join(folder, name), files[name])
        if is_empty and kind == "glob":
            raise SourceError(f"source must be a glob that matches files, {shown_name(text)!r} has none.")
        if is_empty:
            hint = "" if self._recursive else "; its sub-folders are searched only if asked to"
            raise SourceError(f"source must be a folder with images or videos, {shown_name(text)!r} has none{hint}.")

    def _is_new(self, path: str) -> bool:
        count = len(self._seen)
        self._seen.add(hash_path(path))
        return len(self._seen) > count

    def _match(self, folder: str, patterns: Sequence[str]) -> Iterator[tuple[str, Files]]:
        """Yield the folders that match a glob's path components, each with its files that match."""
        if not patterns or patterns[0] == "**":
            recursive = self._recursive or bool(patterns)
            for path, files in walk(folder, storage.list_folder, recursive=recursive, identify=_identity):
                if patterns[1:]:
                    yield from self._match(path, patterns[1:])
                else:
                    is_wanted = is_visible if patterns else _is_listed
                    yield path, {name: file for name, file in files.items() if is_wanted(name)}
            return
        files, folders = storage.list_folder(folder)
        if not patterns[1:]:
            yield folder, {name: files[name] for name in files if _is_match(name, patterns[0])}
        for each in in_order(name for name in folders if _is_match(name, patterns[0])):
            yield from self._match(posixpath.join(folder, each), patterns[1:])


def _absolute(text: str, base: str) -> str:
    """Resolve a path, glob or URL relative to the list that has it, itself a path or URL."""
    if not text or "\0" in text:
        raise SourceError(f"source must be a path or URL without NUL characters, got {text!r}.")
    if is_file_url(text):
        return path_of_url(text)
    if storage.is_remote(text):
        root, path = storage.split_url(text)
        return root + path
    if storage.is_remote(base):
        root, path = storage.split_url(base)
        return root + posixpath.normpath(posixpath.join("/", posixpath.dirname(path), text))
    local = Path(base).parent / text
    # A number is a camera, unless a file or folder has that name.
    if is_camera(text) or (text.isdecimal() and not local.exists()):
        raise storage.live_error(text)
    return str(local)


def _kind_of(text: str) -> str | None:
    """Whether a source is a file, folder or glob; None if it does not exist."""
    kind, _ = storage.look(text) or (None, None)
    return kind or ("glob" if _split_glob(text)[1] else None)


def _split_glob(text: str) -> tuple[str, list[str]]:
    """Split a path or URL into a folder and the path components from the first pattern on, if any."""
    folder, path = storage.split_url(text) if storage.is_remote(text) else ("/", text)
    components = list(filter(None, path.split("/")))
    while components and not glob.has_magic(components[0]):
        folder = posixpath.join(folder, components.pop(0))
    return folder, components


def _identity(path: str) -> str:
    """Canonical path: the same for all names of one file or folder."""
    return path.rstrip("/") if storage.is_remote(path) else os.path.realpath(path)


def _is_list(text: str) -> bool:
    return text.rstrip("/").lower().endswith(".txt")


def _read_list(file: SourceFile) -> Iterator[tuple[str, str]]:
    """Pairs of origin, such as "Line 3 of 'a.txt': ", and absolute source of the lines of a list."""
    name, number, is_empty = shown_name(file.path), 0, True
    with storage.local_copy(file) as path, storage.reaching(file.path), Path(path).open("rb") as lines:
        while line := lines.readline(_LONGEST_LINE + 1):
            number += 1
            origin = f"Line {number} of {name!r}: "
            with _naming(origin):
                if len(line) > _LONGEST_LINE:
                    raise SourceError(f"source must be a line of at most {_LONGEST_LINE} bytes, got more.")
                # Names may be any bytes, and some editors begin a file with a byte order mark.
                line = line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").rstrip(b"\r\n")
                if not line.strip() or line.startswith(b"#"):
                    continue
                found = _absolute(line.decode("utf-8", "surrogateescape"), file.path)
                if _is_list(found):
                    raise SourceError(f"source must be no list in a list, got {shown_name(found)!r}.")
            is_empty = False
            yield origin, found
    if is_empty:
        raise SourceError(f"source must be a list of files, {name!r} names none.")


@contextmanager
def _naming(origin: str) -> Iterator[None]:
    """Prefix errors with their origin, the line of a list, if there is one."""
    try:
        yield
    except InputError as error:
        if not origin or str(error).startswith("Line "):
            raise
        raise type(error)(f"{origin}{error}") from error


def _describe(path: str, file: SourceFile | None = None) -> Found:
    """Read a file's size and time; on failure it counts as missing, so that processing reports the reason."""
    is_video = not is_image_path(path)
    with suppress(SourceError):
        file = file or storage.describe(path)
        if file is not None:
            return Found(file, is_video)
    return Found(SourceFile(path, 0, 0), is_video, is_missing=True)


def _is_listed(name: str) -> bool:
    return is_visible(name) and (is_image_path(name) or is_video_path(name))


def _is_match(name: str, pattern: str) -> bool:
    """Whether a name matches a path component of a glob; hidden names match only patterns that begin with a dot."""
    return fnmatch.fnmatchcase(name, pattern) and (pattern[0] == "." or is_visible(name))
