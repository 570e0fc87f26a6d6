"""List files of folders and globs in natural order."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from maskjet.errors import SourceError, explain, translate_errors
from maskjet.sources.images import IMAGE_SUFFIXES

VIDEO_SUFFIXES = (
    *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".mts", ".m2ts", ".mpg", ".mpeg", ".flv", ".wmv"),
    *(".3gp", ".3g2", ".ogv", ".asf", ".mxf", ".vob", ".h264", ".h265", ".hevc", ".mjpeg", ".y4m", ".ivf"),
)
"""Suffixes of videos found in folders; a file given by name may have any suffix."""

_NUMBER = re.compile("[0-9]+")
_Files = TypeVar("_Files")


def is_image_path(path: str | os.PathLike[str]) -> bool:
    """Whether a path has an image's suffix."""
    return _suffix_of(path) in IMAGE_SUFFIXES


def is_video_path(path: str | os.PathLike[str]) -> bool:
    """Whether a path has a video's suffix."""
    return _suffix_of(path) in VIDEO_SUFFIXES


def _suffix_of(path: str | os.PathLike[str]) -> str:
    # pathlib takes three times as long, and keeps the name in memory.
    return os.path.splitext(path)[1].lower()  # noqa: PTH122


def mode_of(text: str) -> int | None:
    """The mode bits (`st_mode`) of a file, None if it does not exist; raises SourceError if it can't be told."""
    try:
        return Path(text).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # the latter for a NUL in the path
        raise SourceError(f"source must be readable, {text!r} is not: {explain(error)}.") from error


def mode_of_source(text: str) -> int | None:
    """The mode bits of a file, None for a glob; raises SourceError if the file does not exist, or as `mode_of`."""
    mode = mode_of(text)
    if mode is None and not glob.has_magic(text):
        raise SourceError(f"source must exist, {text!r} does not.")
    return mode


def list_folder(folder: str, *, recursive: bool = False) -> list[Path]:
    """The files of a folder in natural order (2 before 10), without hidden ones, FIFOs, sockets and devices.

    Args:
        folder: Path of the folder.
        recursive: Whether to list the files of sub-folders that are not hidden, too. A symbolic link to a folder is
            followed once, and not if it leads back into the folder, so that no file is listed twice.

    Raises:
        SourceError: A folder can't be read.
    """
    with translate_errors(SourceError, f"source must be readable, {folder!r} is not"):
        found = (Path(path, name) for path, files in walk(folder, scan_folder, recursive=recursive) for name in files)
        return sorted((path for path in found if is_visible(path.name)), key=_natural)


def match_glob(pattern: str) -> list[Path]:
    """Files and folders that match a glob, in natural order, no FIFOs, sockets or devices; SourceError without any."""
    with translate_errors(SourceError, f"source must be readable, {pattern!r} is not"):
        matches = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207
        found = sorted(filter(_may_be_read, matches), key=_natural)
    if not found:
        raise SourceError(f"source must be a glob that matches files, {pattern!r} has none.")
    return found


def walk(
    folder: str,
    scan: Callable[[str], tuple[_Files, list[str]]],
    *,
    recursive: bool,
    identify: Callable[[str], str] = os.path.realpath,
) -> Iterator[tuple[str, _Files]]:
    """Walk a folder and, if `recursive`, its sub-folders in natural order, yielding each once scanned.

    `scan` gives a folder's files and the names of its folders, as `scan_folder` does; `identify` its real path, by
    which none is entered twice.
    """
    root, entered, left = identify(folder), set[str](), [folder]
    while left:
        path = left.pop()
        real = identify(path)
        if real in entered:
            continue
        entered.add(real)
        files, folders = scan(path)
        yield path, files
        del files  # freed before the next folder is listed
        names = in_order(filter(is_visible, folders)) if recursive else []
        below = [os.path.join(path, name) for name in reversed(names)]  # noqa: PTH118 - or of URLs
        # Skip links back into the tree: their targets are listed under their own names.
        left += [each for each in below if not (Path(each).is_symlink() and Path(identify(each)).is_relative_to(root))]


def scan_folder(folder: str) -> tuple[list[str], list[str]]:
    """Names of a folder's files and sub-folders, unordered; broken links count as files, devices are skipped.

    Raises:
        SourceError: It can't be read.
    """
    files, folders = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if (entry.is_symlink() and not Path(entry).exists()) or entry.is_file():
                    files.append(entry.name)
                elif entry.is_dir():
                    folders.append(entry.name)
    except OSError as error:
        raise SourceError(f"source must be readable, {error.filename or folder!r} is not: {explain(error)}.") from error
    return files, folders


def _may_be_read(path: Path) -> bool:
    """Whether a path is a file, a folder or missing, which is reported later; no FIFO, socket or device."""
    mode = mode_of(str(path))
    return mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def natural_key(name: str) -> str:
    """A sort key that compares numbers by value; names that begin with a number come last."""
    return _NUMBER.sub(_by_value, name)


def _by_value(number: re.Match[str]) -> str:
    # Compare the number of digits first. NUL sorts before all characters, so that "a1" is before "ab".
    digits = number[0].lstrip("0")
    return ("\0" if number.start() else "\U0010ffff") + chr(len(digits)) + digits


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names naturally; names that differ only in leading zeros are sorted by character."""
    return sorted(sorted(names), key=natural_key)


def is_visible(name: str) -> bool:
    """Whether a file is not hidden."""
    return name[:1] != "."


def _natural(path: Path) -> list[str]:
    return list(map(natural_key, path.parts))
