"""The files of sources: of folders, globs, lists and URLs, one by one."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import posixpath
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maskjet.errors import InputError, SourceError
from maskjet.jobs import storage
from maskjet.jobs.places import Disk, Listing, Place, Store
from maskjet.jobs.segments import SourceFile
from maskjet.media.animations import is_animated
from maskjet.media.containers import is_camera, shown_name
from maskjet.media.folders import is_image_path, is_video_path, natural_key

_LONGEST_LINE = 1 << 16  # bytes; a file with a longer one is no list
_DISK, _STORE = Disk(), Store()

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


def check_sources(sources: Any) -> list[str]:
    """Sources as absolute paths, globs and URLs.

    Raises:
        InputError: They are of another type, none at all, or a URL has credentials.
        SourceError: One is live, or can't be a path.
    """
    if isinstance(sources, str | os.PathLike | int):
        sources = [sources]
    if not isinstance(sources, Iterable) or isinstance(sources, bytes):
        raise InputError(f"sources must be a path, a URL or a list of these, got {type(sources).__name__}.")
    folder = str(Path.cwd())
    found = []
    for each in sources:
        if isinstance(each, int) and not isinstance(each, bool):
            raise storage.live_error(f"camera {each}")
        if not isinstance(each, str | os.PathLike) or isinstance(text := os.fspath(each), bytes):
            raise InputError(f"sources must be paths or URLs, got {type(each).__name__}.")
        found.append(_absolute(text, folder))
    if not found:
        raise InputError("sources must be at least one, got none.")
    return found


def digest_of(path: str) -> int:
    """A number of 64 bits that stands for a path."""
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest())


class Finder:
    """Finds the files of sources, each once, in an order that depends on names alone.

    Args:
        sources: What `check_sources` returned.
        recursive: Whether folders' sub-folders are searched.
    """

    def __init__(self, sources: Sequence[str], *, recursive: bool) -> None:
        self._sources, self._recursive = sources, recursive
        self._named: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._repeated: dict[int, bool] = {}  # files named more than once, and whether they were taken
        self._taken: dict[str, list[_Wanted]] = {}  # by folder: which of its names were taken

    def __iter__(self) -> Iterator[Found]:
        """Check the sources, then find their files.

        Raises:
            SourceError: A source is not as `plan` wants it.
        """
        self._check()
        for text in self._sources:
            if _is_list(text):
                for origin, line in _read_list(text):
                    with _naming(origin):
                        yield from self._find(line)
            else:
                yield from self._find(text)

    def _check(self) -> None:
        """Check what can be known at little cost, and note the files given by name, in 8 bytes each."""
        named = array("Q")
        for text in self._sources:
            if _is_list(text):
                is_empty = True
                for origin, line in _read_list(text):
                    is_empty = False
                    with _naming(origin):
                        if _place_of(line) is _STORE:
                            storage.resolve(line)  # to ask for each object would take as long as the job
                        elif self._check_one(line) != "file":
                            continue
                        named.append(digest_of(_place_of(line).identity(line)))
                if is_empty:
                    raise SourceError(f"source must be a list of files, {shown_name(text)!r} names none.")
            elif self._check_one(text) == "file":
                named.append(digest_of(_place_of(text).identity(text)))
        self._named = np.sort(np.frombuffer(named, np.uint64)) if named else self._named
        self._repeated = dict.fromkeys(self._named[1:][self._named[1:] == self._named[:-1]].tolist(), False)

    def _check_one(self, text: str) -> str:
        """Check that a source exists, and has files if it is on this machine; returns what it is."""
        place = _place_of(text)
        kind = _kind_of(text)
        if kind is None:
            raise SourceError(f"source must exist, {shown_name(text)!r} does not.")
        if kind != "file" and place is _DISK and not any(_has_any(*each) for each in self._listings(text, kind)):
            raise self._nothing_in(text, kind)
        return kind

    def _nothing_in(self, text: str, kind: str) -> SourceError:
        if kind == "glob":
            return SourceError(f"source must be a glob that matches files, {shown_name(text)!r} has none.")
        hint = "" if self._recursive else "; its sub-folders are searched only if asked to"
        return SourceError(f"source must be a folder with images or videos, {shown_name(text)!r} has none{hint}.")

    def _find(self, text: str) -> Iterator[Found]:
        """The files of a source that is no list."""
        kind = _kind_of(text)
        if kind is None or kind == "file":
            if self._is_first(_place_of(text).identity(text)):
                yield _describe(_place_of(text), text, None, is_image=is_image_path(_parts_of(text)[-1]))
            return
        is_empty = True
        for listing, wanted in self._listings(text, kind):
            is_empty = is_empty and not _has_any(listing, wanted)
            yield from self._take(_place_of(text), listing, wanted)
        if is_empty:
            raise self._nothing_in(text, kind)

    def _is_first(self, identity: str) -> bool:
        """Whether a file given by name was not given before."""
        if not self._repeated:
            return True
        digest = digest_of(identity)
        is_first = not self._repeated.get(digest, False)
        if digest in self._repeated:
            self._repeated[digest] = True
        return is_first

    def _take(self, place: Place, listing: Listing, wanted: _Wanted) -> Iterator[Found]:
        """The files of one folder that nobody has taken: images first, then videos."""
        taken = self._taken.setdefault(place.identity(listing.folder), [])
        names = [name for name in listing.files if wanted(name) and not any(each(name) for each in taken)]
        taken.append(wanted)
        if self._named.size:
            names = [name for name in names if not self._is_named(place, place.child(listing.folder, name))]
        images: list[str] = []
        videos: list[str] = []
        for name in names:
            (images if is_image_path(name) else videos).append(name)
        for some in (images, videos):
            for name in _sorted(some):
                file = listing.described.get(name)
                path = file.path if file else place.child(listing.folder, name)
                yield _describe(place, path, file, is_image=some is images)

    def _is_named(self, place: Place, path: str) -> bool:
        digest = np.uint64(digest_of(place.identity(path)))
        at = int(self._named.searchsorted(digest))
        return at < self._named.size and bool(self._named[at] == digest)

    def _listings(self, text: str, kind: str) -> Iterator[tuple[Listing, _Wanted]]:
        """The folders that have a source's files, and which of their names are meant."""
        if kind == "folder":
            return self._of_folder(_place_of(text), text)
        root, *parts = _parts_of(text)
        return self._of_glob(_place_of(text), root, parts)

    def _of_folder(self, place: Place, folder: str) -> Iterator[tuple[Listing, _Wanted]]:
        return ((listing, _is_listed) for listing in _walk(place, folder, recursive=self._recursive))

    def _of_glob(self, place: Place, folder: str, parts: Sequence[str]) -> Iterator[tuple[Listing, _Wanted]]:
        part, *rest = parts
        if part == "**":
            for listing in _walk(place, folder, recursive=True):
                if rest:
                    yield from self._of_glob(place, listing.folder, rest)
                else:
                    yield listing, _is_visible
            return
        if not glob.has_magic(part):
            path = place.child(folder, part)
            kind = place.kind(path)
            if rest and kind == "folder":
                yield from self._of_glob(place, path, rest)
            elif not rest and kind == "folder":
                yield from self._of_folder(place, path)
            elif not rest and kind == "file":
                yield Listing(folder, [part], []), part.__eq__
            return
        wanted = _matching(part)
        listing = place.list(folder)
        if not rest:
            yield listing, wanted
        for name in _sorted(filter(wanted, listing.folders)):
            path = place.child(folder, name)
            yield from self._of_glob(place, path, rest) if rest else self._of_folder(place, path)


def _absolute(text: str, folder: str) -> str:
    """A path, glob or URL that may be relative to a folder, which is a path or URL itself."""
    if not text or "\0" in text:
        raise SourceError(f"source must be a path or URL without NUL characters, got {text!r}.")
    # A number is a camera, but the name of a folder, too.
    if is_camera(text) or (text.isdecimal() and not storage.is_remote(folder) and not Path(folder, text).exists()):
        raise storage.live_error(text)
    if storage.is_remote(text):
        address = storage.parse(text)
        if address.scheme != "file":
            return str(address)
        if address.host not in ("", "localhost"):
            raise SourceError(f"source must be a file of this machine, {text!r} names {address.host!r}.")
        return storage.decode(address.path) or "/"
    if storage.is_remote(folder):
        address = storage.parse(folder)
        path = posixpath.normpath(posixpath.join("/", address.path, storage.encode(text)))
        return str(storage.Address(address.scheme, address.host, path, address.query))
    return str(Path(folder, text))


def _place_of(text: str) -> Place:
    return _STORE if storage.is_remote(text) else _DISK


def _kind_of(text: str) -> str | None:
    """What a source that is no list is: file, folder or glob; None if it does not exist."""
    kind = _place_of(text).kind(text)
    if kind is None and any(map(glob.has_magic, _parts_of(text)[1:])):
        return "glob"
    return kind


def _parts_of(text: str) -> list[str]:
    """The root of a path or URL, and the names below it."""
    if not storage.is_remote(text):
        return list(Path(text).parts)
    address = storage.parse(text)
    parts = [part for part in storage.decode(address.path).split("/") if part]
    return [str(address.root), *parts]


def _is_list(text: str) -> bool:
    return _parts_of(text)[-1].lower().endswith(".txt") and _kind_of(text) == "file"


def _read_list(text: str) -> Iterator[tuple[str, str]]:
    """The lines of a list, absolute, each with what it is called in errors."""
    place = _place_of(text)
    file = place.describe(text)
    if file is None:
        raise SourceError(f"source must exist, {shown_name(text)!r} does not.")
    folder = posixpath.dirname(text)
    if place is _STORE:
        address = storage.parse(text)
        folder = str(storage.Address(address.scheme, address.host, posixpath.dirname(address.path), address.query))
    with storage.local_copy(file) as path, storage.reaching(text), Path(path).open("rb") as lines:
        number = 0
        while line := lines.readline(_LONGEST_LINE + 1):
            number += 1
            origin = f"Line {number} of {shown_name(text)!r}: "
            with _naming(origin):
                if len(line) > _LONGEST_LINE:
                    raise SourceError(f"source must be a line of at most {_LONGEST_LINE} bytes, got more.")
                # Names may be any bytes, and some editors begin a file with a mark.
                name = line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").rstrip(b"\r\n")
                if not name.strip() or name.startswith(b"#"):
                    continue
                found = _absolute(name.decode("utf-8", "surrogateescape"), folder)
                if _parts_of(found)[-1].lower().endswith(".txt"):
                    raise SourceError(f"source must be no list in a list, got {shown_name(found)!r}.")
            yield origin, found


@contextmanager
def _naming(origin: str) -> Iterator[None]:
    """Say in errors which line of which list they are about."""
    try:
        yield
    except InputError as error:
        if str(error).startswith("Line "):
            raise
        raise type(error)(f"{origin}{error}") from error


def _describe(place: Place, path: str, file: SourceFile | None, *, is_image: bool) -> Found:
    """A file as it is; one that can't be described is given, too, so that whoever reads it tells why."""
    try:
        file = file or place.describe(path)
        if file is None:
            return Found(SourceFile(path, 0, 0), not is_image, is_missing=True)
        return Found(file, not is_image or _is_moving(file))
    except SourceError:
        return Found(SourceFile(path, 0, 0), not is_image, is_missing=True)


def _is_moving(file: SourceFile) -> bool:
    """Whether a file is an animated GIF; other formats are hardly ever animated, and opening thousands takes long."""
    if not file.path.partition("?")[0].lower().endswith(".gif"):
        return False
    with storage.local_copy(file) as path:
        return is_animated(Path(path))


def _walk(place: Place, folder: str, *, recursive: bool) -> Iterator[Listing]:
    """A folder and, if asked for, those below it, no real folder twice; as `maskjet.media.folders.list_folder`."""
    root, entered, left = place.identity(folder), set[str](), [folder]
    while left:
        path = left.pop()
        real = place.identity(path)
        if real in entered:
            continue
        entered.add(real)
        listing = place.list(path)
        yield listing
        if recursive:
            names = _sorted(name for name in listing.folders if _is_visible(name))
            below = (place.child(path, name) for name in reversed(names))
            # A folder that a link leads back to is listed under its own name.
            left += [each for each in below if not (place.is_link(each) and _is_below(place.identity(each), root))]
        del listing  # before the next one is made


def _is_below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _sorted(names: Iterable[str]) -> list[str]:
    """Names in natural order; those that differ in zeros before a number alone, by character."""
    found = sorted(names)
    found.sort(key=natural_key)
    return found


def _has_any(listing: Listing, wanted: _Wanted) -> bool:
    return any(map(wanted, listing.files))


def _is_visible(name: str) -> bool:
    return name[0] != "."


def _is_listed(name: str) -> bool:
    """Whether a file of a folder is taken."""
    return _is_visible(name) and (is_image_path(name) or is_video_path(name))


def _matching(pattern: str) -> _Wanted:
    """Whether a name matches a part of a glob; hidden ones only if the pattern is of such."""
    match, is_of_hidden = re.compile(fnmatch.translate(pattern)).match, pattern[0] == "."
    return lambda name: match(name) is not None and (is_of_hidden or _is_visible(name))
