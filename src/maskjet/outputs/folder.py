"""Output folders: names of files, and writing them in threads."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Collection, Sequence
from itertools import chain, count
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from maskjet.drawing.showing import encode
from maskjet.errors import InputError
from maskjet.host.files import is_same_file, naming, replacing
from maskjet.outputs.drawing_threads import DrawingThreads
from maskjet.outputs.encoders import share_cores
from maskjet.outputs.sink import Sink
from maskjet.sources.frames import Frame
from maskjet.sources.images import IMAGE_SUFFIXES

SUFFIXES = (".jpg", ".jpeg", ".png")
"""Suffixes of annotated images."""
IMAGES = "images"
"""Sub-folder for a data set's images, as trainers expect it."""
_COMMON = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")  # formats that other tools read, too
FileId = tuple[int, int]
"""Device and inode numbers, which identify a file."""


def id_of(path: Path) -> FileId:
    """The device and inode numbers of a file that exists."""
    status = path.stat()
    return status.st_dev, status.st_ino


def is_picture(path: str | Path) -> bool:
    """Whether a path names one picture, not a folder."""
    return Path(path).suffix.lower() in SUFFIXES


def unique_stems(names: Sequence[str], roots: Sequence[Path | None] | None = None) -> list[str]:
    """The text that replaces `{}` for each of these source names, without duplicates.

    Below a source's root its name keeps the folders, as in "day1/cam".
    """
    stems: dict[str, None] = {}
    for name, root in zip(names, roots or [None] * len(names), strict=True):
        stem = Path(name).stem
        if "://" in name:  # leave out password and query of a URL
            url = urlsplit(name)
            stem = "_".join(filter(None, (url.hostname, Path(url.path).stem)))
        stem = safe_name(stem)
        if root is not None and Path(name).is_relative_to(root):
            stem = "/".join([*map(safe_name, Path(name).relative_to(root).parts[:-1]), stem])
        numbered = (f"{stem}_{number}" for number in count(2))
        stems[next(free for free in chain((stem,), numbered) if free not in stems)] = None
    return list(stems)


def safe_name(text: str, otherwise: str = "source") -> str:
    """Make a text safe as part of a file name; texts without letters or digits get a substitute."""
    safe = re.sub(r"[^\w -]", "_", text)
    return safe if safe.strip("_ -") else otherwise


class PictureNames:
    """Chooses a unique path for each frame's file; arguments are those of `FolderSink`."""

    def __init__(
        self, path: str, taken: set[Path], *, root: Path | None = None, suffix: str | None = None, below: str = ""
    ) -> None:
        self._name = Path(path).name if is_picture(path) else None
        self.folder = (Path(path).parent if self._name else Path(path) / below).resolve()
        self._taken, self._root, self._suffix, self._below = taken, root, suffix, below

    def take(self, frame_name: str, index: int) -> Path:
        """Return an unused path for a frame."""
        video, _, number = frame_name.rpartition("#")
        own = f"{Path(video).stem}_{number:>06}" if number.isdecimal() else Path(frame_name).name
        wanted = Path(self._name or own or "frame")
        suffix = self._suffix or (wanted.suffix if is_picture(wanted) else ".jpg")
        stem = wanted.stem if wanted.suffix.lower() in IMAGE_SUFFIXES else wanted.name
        stems = chain((stem, f"{stem}_{index}"), (f"{stem}_{index}_{n}" for n in count(2)))
        folder = self.folder / self._sub_folder(Path(frame_name))
        path = next(free for free in (folder / (stem + suffix) for stem in stems) if free not in self._taken)
        self._taken.add(path)
        return path

    def _sub_folder(self, image: Path) -> Path:
        """Sub-folder of an image relative to the root, if sub-folders are kept."""
        if self._root is None or self._name or not image.is_relative_to(self._root):
            return Path()
        parts = image.relative_to(self._root).parent.parts
        return Path(*(part for part in parts if not (self._below and part == IMAGES)))


class FolderSink(Sink):
    """Base of sinks that write a file per frame to a folder or one picture, partly in threads, each atomically.

    Args:
        suffix: Suffix of the files; None for the picture's own, or .jpg.
        below: Folder in `path` that the files lie in; sub-folders called images are not kept then.
        taken: Paths that other sinks write; own ones are added.
        sources: Files that must not be overwritten.
        root: Folder whose sub-folders are kept; see `Source.root`.
    """

    def __init__(
        self,
        path: str,
        *,
        suffix: str | None,
        below: str = "",
        taken: set[Path] | None = None,
        sources: Collection[FileId] = (),
        root: Path | None = None,
    ) -> None:
        self._names = PictureNames(path, set() if taken is None else taken, root=root, suffix=suffix, below=below)
        self._sources = sources
        self._threads = DrawingThreads(share_cores(1))
        with naming(path):
            self._names.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._names.folder).close()  # fails if an existing folder is not writable
        self.paths = (path,)

    def _check_free(self, path: Path, frame: Frame) -> None:
        """Raise InputError if a file would overwrite that of a source."""
        with naming(str(path)):
            if path.exists() and (id_of(path) in self._sources or is_same_file(path, frame.name)):
                raise InputError(f"out must not be where the source is, {str(path)!r} would be overwritten.")

    def close(self) -> None:
        """Wait until all files are written."""
        error = None if self._threads.is_closed else self._threads.close()
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Wait until all files are written; each is whole."""
        self._threads.close()


def file_of(frame: Frame) -> Path | None:
    """Path of the image file of a frame, if other tools read its format; None for video and memory."""
    path = Path(frame.name)
    is_file = not frame.is_of_video and path.suffix.lower() in _COMMON and path.is_file()
    return path if is_file else None


def write_picture(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write a picture to a folder, atomically."""
    data = encode(pixels, path.suffix.lower(), name=repr(str(path)))
    with replacing(path, suffix="", is_durable=False) as temporary:  # else tools would read the temporary .jpg
        temporary.write(data)


def copy_file(path: Path, source: Path) -> None:
    """Copy a file into a folder, atomically."""
    with replacing(path, suffix="", is_durable=False) as temporary, source.open("rb") as file:
        shutil.copyfileobj(file, temporary.file)
