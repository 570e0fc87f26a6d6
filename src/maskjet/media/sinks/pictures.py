"""Annotated images as output."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from itertools import chain, count
from pathlib import Path
from typing import NoReturn

from maskjet.detections import Detections
from maskjet.drawing import DrawStyle, Painter, Redaction, Style
from maskjet.drawing.showing import encode
from maskjet.drawing.style import is_transparent, refuse_transparency
from maskjet.errors import InputError
from maskjet.files import is_same_file, naming, replacing
from maskjet.media.frames import Frame
from maskjet.media.images import IMAGE_SUFFIXES
from maskjet.media.sinks.drawing_threads import DrawingThreads
from maskjet.media.sinks.encoders import share_cores
from maskjet.media.sinks.sink import Sink

SUFFIXES = (".jpg", ".jpeg", ".png")
"""Suffixes of annotated images."""
_ALPHA = ".png"  # suffix of pictures that may be transparent
_STYLE = DrawStyle()
FileId = tuple[int, int]
"""Device and inode numbers, which identify a file."""


def id_of(path: Path) -> FileId:
    """The device and inode numbers of a file that exists."""
    status = path.stat()
    return status.st_dev, status.st_ino


def is_picture(path: str | Path) -> bool:
    """Whether a path names one picture, not a folder."""
    return Path(path).suffix.lower() in SUFFIXES


class PictureNames:
    """Chooses a path of its own for each frame's picture.

    Args:
        path: Folder or single picture, as in `AnnotatedImages`.
        taken: Paths of pictures that others write; own ones are added.
        root: Folder whose sub-folders are kept, for images in them.
        suffix: Suffix of all files; None for the picture's own, or .jpg.
    """

    def __init__(self, path: str, taken: set[Path], *, root: Path | None = None, suffix: str | None = None) -> None:
        self._name = Path(path).name if is_picture(path) else None
        self.folder = (Path(path).parent if self._name else Path(path)).resolve()
        self._taken, self._root, self._suffix = taken, root, suffix

    def take(self, frame_name: str, index: int) -> Path:
        """Take a path that no earlier frame has."""
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

    def make_folder(self, path: str) -> None:
        """Make the folder if it is missing; raises OutputError, with this path, if it can't be written to."""
        with naming(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()  # an existing folder may not be writable

    def _sub_folder(self, image: Path) -> Path:
        """The folder of an image below the root, if it is kept."""
        if self._root is None or self._name or not image.is_relative_to(self._root):
            return Path()
        return image.relative_to(self._root).parent


def suffix_of(style: Style) -> str | None:
    """Suffix that all pictures in a style get; None if they keep theirs."""
    return _ALPHA if is_transparent(style) else None


def refuse_several(path: str) -> NoReturn:
    """Raise InputError, as several frames would go to one picture."""
    folder = f"{Path(path).with_suffix('')}/"
    raise InputError(f"out must be a folder for several frames, got {path!r}: write {folder!r}.")


def check_style(style: Style, path: str) -> None:
    """Raise InputError if pixels of a style are transparent, and the path is that of a .jpg."""
    if is_picture(path) and Path(path).suffix.lower() != _ALPHA:
        refuse_transparency(style, path)


class AnnotatedImages(Sink):
    """Images with their detections drawn in, redacted or cut out; a file is whole or does not exist.

    In a folder, images keep their file names; a suffix other than .jpg, .jpeg and .png becomes .jpg, and any becomes
    .png if pixels are transparent. Video frames get the video's name and their number. If a name is taken, as by a file
    of the same name in another folder, the frame's index is added.

    Args:
        path: A folder, made if missing; or one .jpg or .png, for one frame.
        taken: Paths of pictures that other sinks write; own ones are added.
        sources: Files that must not be overwritten.
        root: Folder whose sub-folders are kept; see `Source.root`.
        style: Whether frames are annotated, redacted or cut out, and how.

    Raises:
        InputError: Pixels of the style are transparent, and the path is that of a .jpg.
    """

    def __init__(
        self,
        path: str,
        *,
        taken: set[Path] | None = None,
        sources: Collection[FileId] = (),
        root: Path | None = None,
        style: Style = _STYLE,
    ) -> None:
        check_style(style, path)
        self._names = PictureNames(path, set() if taken is None else taken, root=root, suffix=suffix_of(style))
        self._painter = Painter(style, overwrites=True)
        self.redacts = isinstance(style, Redaction)
        self._sources = sources
        self._threads = DrawingThreads(share_cores(1))
        self._has_picture = False
        self._names.make_folder(path)
        self.paths = (path,)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Draw and write one image, in threads, some frames behind; it must not change afterwards.

        Raises:
            InputError: The image would overwrite one of a source, the path is that of one picture, which is taken, or
                the sink is closed.
        """
        if self._has_picture and is_picture(self.paths[0]):
            refuse_several(self.paths[0])
        self._has_picture = True
        path = self._names.take(frame.name, frame.index)
        with naming(str(path)):
            if path.exists() and (id_of(path) in self._sources or is_same_file(path, frame.name)):
                raise InputError(f"out must not be where the source is, {str(path)!r} would be overwritten.")
        self._threads.add(lambda: self._write(path, frame, detections))

    def _write(self, path: Path, frame: Frame, detections: Detections) -> Iterator[None]:
        """The work on a frame; see `DrawingThreads`."""
        draw = self._painter.prepare(frame, detections)
        yield
        drawn = draw()
        data = encode(drawn, path.suffix.lower(), name=repr(str(path)))
        with replacing(path, suffix="", is_durable=False) as temporary:  # .jpg would make it one of the folder
            temporary.write(data)

    def close(self) -> None:
        """Wait until all images are written."""
        error = None if self._threads.is_closed else self._threads.close()
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Wait until all images are written; each is whole."""
        self._threads.close()
