"""Opening sources: images, folders, globs, videos, cameras, URLs, arrays, and lists of these."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from maskjet.errors import InputError, SourceError, border, explain
from maskjet.media.images import IMAGE_SUFFIXES, to_image
from maskjet.media.source import Frame, Source
from maskjet.media.videos import VideoSource, files_of, is_stream

__all__ = [
    "Frame",
    "ImageSource",
    "ListSource",
    "Source",
    "VideoSource",
    "kind_of_source",
    "open_source",
    "split_sources",
]


def open_source(source: Any) -> Source:
    """Open a source of frames.

    Args:
        source: The path of an image or a video; a folder, whose images are read in natural order (2 before 10) and
            whose videos are ignored; a glob; a camera, by number or device file; an RTSP or HTTP URL; an image as an
            array, PIL image or tensor; an iterable of these; or a `Source`, which is returned as is.

    Returns:
        The opened source. A frame that turns out bad later, or a file of a folder or glob that is gone when its turn
        comes, is no error; it is listed in `bad_frames`.

    Raises:
        SourceError: Nothing can be read from the source, a file named in a list does not exist, or the source is a
            FIFO, socket or device; the message names it.
        InputError: The source is of none of the types above.
    """
    return _open(source, "image")


def split_sources(source: Any) -> list[Any]:
    """Split a list or tuple into sources to read side by side; anything else, or a list of images, stays one source.

    Raises:
        SourceError: A named file does not exist.
        InputError: An opened source is given twice.
    """
    if not isinstance(source, list | tuple) or all(map(_is_image, source)):
        return [source]
    for position, item in enumerate(source):
        _check_named(item)
        if isinstance(item, Source) and any(item is other for other in source[:position]):
            raise InputError(f"source must be given once, {item.name!r} is given twice: open it twice.")
    return list(source)


def kind_of_source(value: Any) -> str | None:
    """What a value names that is a source of several frames, for messages; None if nothing or one image."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "a camera"
    if not isinstance(value, str | os.PathLike):
        return None
    text = os.fspath(value).removeprefix("file://")
    if is_stream(text):
        return "a camera or a URL"
    try:
        mode = _mode(text)
    except SourceError:
        return None
    if mode is None and (text.isdecimal() or glob.has_magic(text)):
        return "a camera" if text.isdecimal() else "a glob"
    if mode is not None and stat.S_ISDIR(mode):
        return "a folder"
    return "a video" if Path(text).suffix and not _is_image(text) else None


def _open(source: Any, name: str) -> Source:
    """Open a source; `name` is used for images in memory."""
    if isinstance(source, Source):
        return source
    if isinstance(source, int) or (isinstance(source, str) and source.isdecimal()):
        return VideoSource(f"/dev/video{source}")
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source))
    if _is_image(source):
        return ImageSource(source, name)
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        if isinstance(source, list | tuple):
            for item in source:
                _check_named(item)
        return ListSource(source, type(source).__name__)
    raise InputError(f"source must be a path, URL, camera, image or an iterable of these, got {type(source).__name__}.")


def _open_path(text: str) -> Source:
    text = text.removeprefix("file://")
    if is_stream(text):
        return VideoSource(text)
    mode = _mode(text)
    if mode is None and glob.has_magic(text):
        return _open_files(text, "glob that matches files", map(Path, glob.glob(text, recursive=True)))  # noqa: PTH207
    if mode is None:
        raise SourceError(f"source must exist, {text!r} does not.")
    if stat.S_ISDIR(mode):
        return _open_files(text, "folder with images", filter(_is_image, Path(text).iterdir()))
    if not stat.S_ISREG(mode):  # reading it might wait for ever
        raise SourceError(
            f"source must be a file, folder, camera or URL, {text!r} is a FIFO, socket or device: save what comes from "
            "it to a file, or serve it at a URL."
        )
    return ImageSource(Path(text), text) if _is_image(text) else VideoSource(text)


def _check_named(item: Any) -> None:
    """Raise if an item is the path of a missing file."""
    if isinstance(item, str | os.PathLike):
        text = os.fspath(item).removeprefix("file://")
        if not (text.isdecimal() or is_stream(text) or glob.has_magic(text)) and _mode(text) is None:
            raise SourceError(f"source must exist, {text!r} does not.")


def _mode(text: str) -> int | None:
    """The mode bits (`st_mode`) of a file; None if it does not exist."""
    with border(SourceError, f"source must be readable, {text!r} is not"):
        try:
            return Path(text).stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SourceError(f"source must be readable, {text!r} is not: {explain(error)}.") from error


def _open_files(text: str, expected: str, paths: Iterable[Path]) -> Source:
    with border(SourceError, f"source must be readable, {text!r} is not"):
        found = sorted(filter(_may_be_read, paths), key=_natural)
    if not found:
        raise SourceError(f"source must be a {expected}, {text!r} has none.")
    return ListSource(found, text)


def _may_be_read(path: Path) -> bool:
    """Whether a path is no FIFO, socket or device; a missing file is reported when its turn comes."""
    mode = _mode(str(path))
    return mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that compares numbers in names by value."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path)) if part]


def _files_of(item: Any) -> list[Path]:
    """The files that a source will read, as far as its name tells."""
    if isinstance(item, Source):
        return list(item.files)
    if not isinstance(item, str | os.PathLike):
        return []
    text = os.fspath(item).removeprefix("file://")
    path = Path(text)
    if is_stream(text) or (isinstance(item, Path) and _is_image(path)):  # the second: a folder may have thousands
        return files_of(text)
    if path.is_dir():
        return list(filter(_is_image, path.iterdir()))
    if path.exists() or not glob.has_magic(text):
        return [path]
    return list(map(Path, glob.glob(text, recursive=True)))  # noqa: PTH207


def _is_image(item: Any) -> bool:
    """Whether an item is one image: in memory, or a path with an image's suffix."""
    if isinstance(item, str | os.PathLike):
        return Path(item).suffix.lower() in IMAGE_SUFFIXES
    return hasattr(item, "shape") or hasattr(item, "getexif") or hasattr(item, "__dlpack__")


class ImageSource(Source):
    """One image, read when it is opened.

    Args:
        image: Path or image in memory, as `to_image` takes it.
        name: Path of the image, or its name in frames and messages.

    Raises:
        SourceError: The file can't be read.
        InputError: The value is no image.
    """

    kind = "image"
    length = 1

    def __init__(self, image: Any, name: str) -> None:
        super().__init__(name)
        self._image = to_image(image, name)
        self.files = _files_of(image)
        self.size_hw = (self._image.shape[0], self._image.shape[1])

    def _read(self) -> Iterator[Frame]:
        self.frames_seen = 1
        yield Frame(0, None, self._image, self.name, self.name)


class ListSource(Source):
    """Sources read one after another, each opened when its turn comes; their frames are numbered continuously.

    An item that can't be opened, or breaks off, counts as one bad frame.

    Args:
        items: Sources, each as `open_source` takes it.
        name: Name of the whole list.
    """

    kind = "list"

    def __init__(self, items: Iterable[Any], name: str) -> None:
        super().__init__(name)
        self._items = items
        if isinstance(items, list | tuple):
            self.files = [path for item in items for path in _files_of(item)]
        if isinstance(items, list | tuple) and all(map(_is_image, items)):
            self.length = len(items)

    def _read(self) -> Iterator[Frame]:
        for position, item in enumerate(self._items):
            try:
                source = _open(item, f"{self.name}[{position}]")
                frames = iter(source)  # raises if another reads it, before it is closed below
                self.look = self.look or source.look
                with source:
                    yield from self._number(source, frames)
            except SourceError as error:
                self._skip(str(error))

    def _number(self, source: Source, frames: Iterator[Frame]) -> Iterator[Frame]:
        """The frames of one source, numbered on from the end of the previous one."""
        first, is_exact = self.frames_seen, self.index_is_exact
        try:
            for frame in frames:
                yield replace(
                    frame,
                    index=first + frame.index,
                    source=self.name,
                    index_is_exact=is_exact and frame.index_is_exact,
                )
        finally:
            self.bad_frames += [(first + index, reason) for index, reason in source.bad_frames]
            self.frames_seen = first + source.frames_seen
            self.index_is_exact = is_exact and source.index_is_exact
            self.states_end &= source.states_end
