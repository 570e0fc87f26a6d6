"""Annotated images."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from itertools import chain, count
from pathlib import Path

import cv2

from maskjet.detections import Detections
from maskjet.errors import InputError, OutputError
from maskjet.files import Part, naming
from maskjet.media.drawing import draw
from maskjet.media.frames import Frame
from maskjet.media.images import IMAGE_SUFFIXES
from maskjet.media.sinks.sink import Sink

SUFFIXES = (".jpg", ".jpeg", ".png")
"""Of pictures that are written."""
FileId = tuple[int, int]
"""Device and inode."""


def is_picture(path: str | Path) -> bool:
    """Whether a path is that of one picture, and not of a folder."""
    return Path(path).suffix.lower() in SUFFIXES


class PictureNames:
    """Where the pictures of frames go: no two to the same place.

    Args:
        path: As for `AnnotatedImages`.
        taken: Paths of pictures that others write; grows.
    """

    def __init__(self, path: str, taken: set[Path]) -> None:
        self._name = Path(path).name if is_picture(path) else None
        self.folder = (Path(path).parent if self._name else Path(path)).resolve()
        self._taken = taken

    def take(self, frame_name: str, index: int) -> Path:
        """A path that no earlier frame has."""
        video, _, number = frame_name.rpartition("#")
        own = f"{Path(video).stem}_{number:>06}" if number.isdecimal() else Path(frame_name).name
        wanted = Path(self._name or own or "frame")
        suffix = wanted.suffix if is_picture(wanted) else ".jpg"
        stem = wanted.stem if wanted.suffix.lower() in IMAGE_SUFFIXES else wanted.name
        stems = chain((stem, f"{stem}_{index}"), (f"{stem}_{index}_{n}" for n in count(2)))
        path = next(free for free in (self.folder / (stem + suffix) for stem in stems) if free not in self._taken)
        self._taken.add(path)
        return path


class AnnotatedImages(Sink):
    """Images with their detections drawn in, each whole or not there.

    In a folder they keep the names of their files, but for the suffix where it is neither .jpg nor .png; frames of a
    video get theirs with a number. Where a name is taken, by a file of the same name in another folder, the frame's
    index is added.

    Args:
        path: The folder, made if it is not there; or the .jpg or .png of the only frame, others getting its name and
            their index.
        taken: Paths of pictures that other sinks write; grows.
        sources: Files that must not be written over.

    Raises:
        OutputError: Nothing can be written there.
    """

    def __init__(self, path: str, *, taken: set[Path] | None = None, sources: Collection[FileId] = ()) -> None:
        self._names = PictureNames(path, set() if taken is None else taken)
        self._sources = sources
        with naming(path):
            self._names.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._names.folder).close()  # a folder may be there and closed to us
        self.paths = (path,)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one image."""
        path = self._names.take(frame.name, frame.index)
        with naming(str(path)):
            self._check_is_no_source(path, frame)
        pixels = cv2.cvtColor(draw(frame.image, detections), cv2.COLOR_RGB2BGR)
        try:
            _, data = cv2.imencode(path.suffix, pixels, [cv2.IMWRITE_JPEG_QUALITY, 92])
        except cv2.error as error:  # a JPEG has at most 65,500 pixels a side
            raise OutputError(f"{str(path)!r} must be of a size that {path.suffix} has: {error}.") from error
        part = Part(str(path), suffix="")  # of no image, or it would be one of the folder
        try:
            part.write(data.tobytes())
            part.finish(is_durable=False)
        except BaseException:
            part.remove()
            raise

    def _check_is_no_source(self, path: Path, frame: Frame) -> None:
        if not path.exists():
            return
        status = path.stat()
        source = Path(frame.name)
        if (status.st_dev, status.st_ino) in self._sources or (source.is_file() and path.samefile(source)):
            raise InputError(f"out must not be where the source is, {str(path)!r} would be overwritten.")

    def close(self) -> None:
        """Nothing is left to do."""

    def abandon(self) -> None:
        """Nothing either: each image is whole."""
