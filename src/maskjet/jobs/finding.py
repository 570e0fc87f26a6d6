"""The files of sources: of folders, globs, lists and URLs, one by one."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskjet.errors import InputError, SourceError
from maskjet.files import is_file_url, path_of_url
from maskjet.jobs import storage
from maskjet.jobs.segments import SourceFile
from maskjet.jobs.storage import Files
from maskjet.media.animations import is_animated
from maskjet.media.containers import is_camera, shown_name
from maskjet.media.folders import in_order, is_image_path, is_video_path, is_visible, walk

_LONGEST_LINE = 1 << 16  # bytes; a file with a longer one is no list

_Wanted = Callable[[str], bool]


@dataclass(frozen=True)
class Found:
    """A file that a source has."""

    file: SourceFile
    """Its size and time are 0 if it is missing."""
    is_video: bool
    """Whether it is a video, not an image."""
    is_missing: bool = False
    """Whether there is no such file, or it can't be described."""


def digest_of(path: str) -> int:
    """A number of 64 bits that stands for a path."""
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest())


class Finder:
    """Finds the files of sources, each once, in an order that depends on names alone.

    Args:
        sources: As `plan` takes them.
        recursive: Whether folders' sub-folders are searched.

    Raises:
        InputError: They are of another type, none at all, or a URL may hold a secret.
        SourceError: One is live, or can't be a path.
    """

    def __init__(self, sources: Any, *, recursive: bool) -> None:
        self._sources, self._recursive = list[str](), recursive
        self._named: dict[int, bool] = {}  # digests of the files given by name, and whether they were found
        self._taken: dict[str, list[_Wanted]] = {}  # by folder: which of its names were taken
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
        """Check all that can be known at little cost, then find the files.

        Raises:
            SourceError: A source is not as `plan` wants it.
        """
        for origin, text in self._lines():
            with _naming(origin):
                self._check(text, is_line=bool(origin))
        for origin, text in self._lines():
            with _naming(origin):
                yield from self._find(text)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """The sources and, in place of lists, their lines, each with what it is called in errors."""
        for text in self._sources:
            if _is_list(text) and (file := storage.describe(text)):
                yield from _read_list(file)
            else:
                yield "", text

    def _check(self, text: str, *, is_line: bool) -> None:
        """Check that a source exists, and has files if it is on this machine."""
        is_remote = storage.is_remote(text)
        if is_line and is_remote:
            storage.resolve(text)
        # To ask for each object of a list would take as long as the job.
        kind = "file" if is_line and is_remote else _kind_of(text)
        if kind is None:
            raise SourceError(f"source must exist, {shown_name(text)!r} does not.")
        if kind == "file":
            self._named[_digest(text)] = False
        elif not is_remote:
            next(Finder(text, recursive=self._recursive)._find(text))

    def _find(self, text: str) -> Iterator[Found]:
        """The files of a source that is no list."""
        kind = _kind_of(text)
        if kind is None or kind == "file":
            if not self._named.get(_digest(text)):
                self._named[_digest(text)] = True
                yield _describe(text, _parts_of(text)[-1])
            return
        is_empty = True
        folder, *parts = [text] if kind == "folder" else _parts_of(text)
        for each, files, wanted in self._match(folder, parts):
            is_empty = is_empty and not any(map(wanted, files))
            yield from self._take(each, files, wanted)
        if is_empty and kind == "glob":
            raise SourceError(f"source must be a glob that matches files, {shown_name(text)!r} has none.")
        if is_empty:
            hint = "" if self._recursive else "; its sub-folders are searched only if asked to"
            raise SourceError(f"source must be a folder with images or videos, {shown_name(text)!r} has none{hint}.")

    def _take(self, folder: str, files: Files, wanted: _Wanted) -> Iterator[Found]:
        """The files of one folder that nobody has taken: images first, then videos."""
        taken = self._taken.setdefault(_identity(folder), [])
        names = in_order(name for name in files if wanted(name) and not any(each(name) for each in taken))
        taken.append(wanted)
        names.sort(key=is_image_path, reverse=True)
        for name in names:
            path = posixpath.join(folder, name)
            if not self._named or _digest(path) not in self._named:
                yield _describe(path, name, files[name])

    def _match(self, folder: str, parts: Sequence[str]) -> Iterator[tuple[str, Files, _Wanted]]:
        """The folders with files for the parts of a glob, and which of these are meant; without parts, the folder's."""
        if not parts or parts[0] == "**":
            recursive = self._recursive or bool(parts)
            for path, files in walk(folder, storage.list_folder, recursive=recursive, identify=_identity):
                if parts[1:]:
                    yield from self._match(path, parts[1:])
                else:
                    yield path, files, is_visible if parts else _is_listed
            return
        part, *rest = parts
        if glob.has_magic(part):
            wanted, (files, folders) = _matching(part), storage.list_folder(folder)
        else:
            kind, _ = storage.look(posixpath.join(folder, part)) or (None, None)
            wanted, files, folders = part.__eq__, {part: None} if kind == "file" else {}, [part] * (kind == "folder")
        if not rest:
            yield folder, files, wanted
        for name in in_order(filter(wanted, folders)):
            yield from self._match(posixpath.join(folder, name), rest)


def _absolute(text: str, base: str) -> str:
    """A path, glob or URL that may be relative to a list, which is a path or URL itself."""
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
    # A number is a camera, but the name of a folder, too.
    if is_camera(text) or (text.isdecimal() and not local.exists()):
        raise storage.live_error(text)
    return str(local)


def _kind_of(text: str) -> str | None:
    """What a source that is no list is: file, folder or glob; None if it does not exist."""
    kind, _ = storage.look(text) or (None, None)
    return kind or ("glob" if any(map(glob.has_magic, _parts_of(text)[1:])) else None)


def _parts_of(text: str) -> list[str]:
    """The root of a path or URL, and the names below it."""
    root, path = storage.split_url(text) if storage.is_remote(text) else ("/", text)
    return [root, *filter(None, path.split("/"))]


def _digest(path: str) -> int:
    return digest_of(_identity(path))


def _identity(path: str) -> str:
    """A path that all names of one file or folder have in common."""
    return path.rstrip("/") if storage.is_remote(path) else os.path.realpath(path)


def _is_list(text: str) -> bool:
    return _parts_of(text)[-1].lower().endswith(".txt")


def _read_list(file: SourceFile) -> Iterator[tuple[str, str]]:
    """The lines of a list, absolute, each with what it is called in errors."""
    name, number, is_empty = shown_name(file.path), 0, True
    with storage.local_copy(file) as path, storage.reaching(file.path), Path(path).open("rb") as lines:
        while line := lines.readline(_LONGEST_LINE + 1):
            number += 1
            origin = f"Line {number} of {name!r}: "
            with _naming(origin):
                if len(line) > _LONGEST_LINE:
                    raise SourceError(f"source must be a line of at most {_LONGEST_LINE} bytes, got more.")
                # Names may be any bytes, and some editors begin a file with a mark.
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
    """Say in errors which line of which list they are about, if any."""
    try:
        yield
    except InputError as error:
        if not origin or str(error).startswith("Line "):
            raise
        raise type(error)(f"{origin}{error}") from error


def _describe(path: str, name: str, file: SourceFile | None = None) -> Found:
    """A file as it is; one that can't be described is given, too, so that whoever reads it tells why."""
    is_video = not is_image_path(name)
    with suppress(SourceError):
        file = file or storage.describe(path)
        if file is not None:
            if name.lower().endswith(".gif"):  # other images hardly ever move, and opening thousands takes long
                with storage.local_copy(file) as local:
                    is_video = is_animated(Path(local))
            return Found(file, is_video)
    return Found(SourceFile(path, 0, 0), is_video, is_missing=True)


def _is_listed(name: str) -> bool:
    """Whether a file of a folder is taken."""
    return is_visible(name) and (is_image_path(name) or is_video_path(name))


def _matching(pattern: str) -> _Wanted:
    """Whether a name matches a part of a glob; hidden ones only if the pattern is of such."""
    match, is_of_hidden = re.compile(fnmatch.translate(pattern)).match, pattern[0] == "."
    return lambda name: match(name) is not None and (is_of_hidden or is_visible(name))
