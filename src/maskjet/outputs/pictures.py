"""Annotated images as output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from maskjet.detections import Detections
from maskjet.drawing import DrawStyle, Painter, Redaction, Style
from maskjet.drawing.style import is_transparent
from maskjet.errors import InputError
from maskjet.outputs.folder import FolderSink, is_picture, write_picture
from maskjet.sources.frames import Frame

ALPHA = ".png"
"""Suffix of transparent pictures."""


def suffix_of(style: Style) -> str | None:
    """Suffix enforced by a style; None if pictures keep theirs."""
    return ALPHA if is_transparent(style) else None


def refuse_several(path: str) -> NoReturn:
    """Raise InputError: several frames would be written to one picture."""
    folder = f"{Path(path).with_suffix('')}/"
    raise InputError(f"out must be a folder for several frames, got {path!r}: write {folder!r}.")


class AnnotatedImages(FolderSink):
    """Images with their detections drawn in, redacted or cut out: a folder, or one .jpg or .png for one frame.

    In a folder, images keep their file names; a suffix other than .jpg, .jpeg and .png becomes .jpg, and any becomes
    .png if pixels are transparent. Video frames get the video's name and their number. If a name is taken, as by a file
    of the same name in another folder, the frame's index is added.
    """

    def __init__(self, path: str, *, style: Style = DrawStyle(), **others: Any) -> None:
        super().__init__(path, suffix=suffix_of(style), **others)
        self._painter = Painter(style, overwrites=True)
        self.redacts = isinstance(style, Redaction)
        self._has_picture = False

    def write(self, frame: Frame, detections: Detections) -> None:
        """Queue one image for drawing and writing in threads; it must not change afterwards."""
        if self._has_picture and is_picture(self.paths[0]):
            refuse_several(self.paths[0])
        self._has_picture = True
        path = self._names.take(frame.name, frame.index)
        self._check_free(path, frame)
        self._threads.add(lambda: self._write(path, frame, detections))

    def _write(self, path: Path, frame: Frame, detections: Detections) -> Iterator[None]:
        draw = self._painter.prepare(frame, detections)
        yield
        write_picture(path, draw())
