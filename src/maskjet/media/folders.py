"""Files of folders and globs, in natural order."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from maskjet.errors import SourceError, border, explain
from maskjet.media.images import IMAGE_SUFFIXES

VIDEO_SUFFIXES = (
    *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".mts", ".m2ts", ".mpg", ".mpeg", ".flv", ".wmv"),
    *(".3gp", ".3g2", ".ogv", ".asf", ".mxf", ".vob", ".h264", ".h265", ".hevc", ".mjpeg", ".y4m", ".ivf"),
)
"""File names that are videos if they are found in a folder; a file given by its own name may have any."""

_NUMBER = re.compile("[0-9]+")


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
    """The mode bits (`st_mode`) of a file; None if it does not exist.

    Raises:
        SourceError: The file system does not tell.
    """
    with border(SourceError, f"source must be readable, {text!r} is not"):
        try:
            return Path(text).stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SourceError(f"source must be readable, {text!r} is not: {explain(error)}.") from error


def mode_of_source(text: str) -> int | None:
    """The mode bits of a file; None for a glob.

    Raises:
        SourceError: The file does not exist, or the file system does not tell.
    """
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
    with border(SourceError, f"source must be readable, {folder!r} is not"):
        paths = _walk(folder) if recursive else Path(folder).iterdir()
        return sorted((path for path in paths if path.name[0] != "." and _may_be_read(path)), key=_natural)


def match_glob(pattern: str) -> list[Path]:
    """The files and folders that match a glob, in natural order, without FIFOs, sockets and devices.

    Raises:
        SourceError: Nothing matches, or a folder can't be read.
    """
    with border(SourceError, f"source must be readable, {pattern!r} is not"):
        matches = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207
        found = sorted(filter(_may_be_read, matches), key=_natural)
    if not found:
        raise SourceError(f"source must be a glob that matches files, {pattern!r} has none.")
    return found


def _walk(folder: str) -> Iterator[Path]:
    """All files below a folder; no real folder is entered twice."""
    root = os.path.realpath(folder)
    entered = {root}
    for where, names, files in os.walk(folder, onerror=_refuse, followlinks=True):
        names[:] = [name for name in sorted(names) if name[0] != "." and _enter(Path(where, name), root, entered)]
        yield from (Path(where, name) for name in files)


def _enter(path: Path, root: str, entered: set[str]) -> bool:
    """Whether to enter a folder: not by a link to one that is, or will be, read under its own name."""
    real = os.path.realpath(path)
    if path.is_symlink() and Path(real).is_relative_to(root):
        return False
    is_first = real not in entered
    entered.add(real)
    return is_first


def _refuse(error: OSError) -> None:
    raise SourceError(f"source must be readable, {error.filename!r} is not: {explain(error)}.") from error


def _may_be_read(path: Path) -> bool:
    """Whether a path is no FIFO, socket or device; a missing file is reported when its turn comes."""
    mode = mode_of(str(path))
    return mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def natural_key(name: str) -> str:
    """A sort key as small as the name that compares numbers by value; a number at the beginning follows letters."""
    return _NUMBER.sub(_by_value, name)


def _by_value(number: re.Match[str]) -> str:
    # The more digits, the larger. NUL is before all that a name may have, so that "a1" is before "ab", as "a" is.
    digits = number[0].lstrip("0")
    return ("\0" if number.start() else "\U0010ffff") + chr(len(digits)) + digits


def _natural(path: Path) -> list[str]:
    """A sort key for paths, folder by folder."""
    return list(map(natural_key, path.parts))
