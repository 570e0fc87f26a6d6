"""Crops of single detections as output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskjet.detections import Detections
from maskjet.outputs.folder import FolderSink, safe_name, write_picture
from maskjet.outputs.label_options import LabelOptions
from maskjet.sources.frames import Frame

SUFFIX = ".crops"
"""Suffix of an output folder of crops; a folder named "crops" counts, too."""
_MOST_BYTES = 100  # longest folder name of a class


class Crops(FolderSink):
    """A folder with a picture of each detection, in a folder per class: car/video_000003_0.jpg.

    A file is called like the frame's annotated image, with the detection's position in the frame and, with tracking,
    its track's id: video_000003_0_track7.jpg. A name of a folder that another class has gets the class id.
    """

    def __init__(self, path: str, options: LabelOptions = LabelOptions(), **others: Any) -> None:
        super().__init__(path, suffix=".png" if options.crop_background == "transparent" else ".jpg", **others)
        self._options = options
        self._folders: dict[int, str] = {}

    def write(self, frame: Frame, detections: Detections) -> None:
        """Cut and write one frame's crops, in threads."""
        path = self._names.take(frame.name, frame.index)
        self._threads.add(lambda: self._write(path, frame, detections))

    def _write(self, path: Path, frame: Frame, detections: Detections) -> Iterator[None]:
        folders = [*map(self._folder_of, detections.class_id.tolist(), map(str, detections.class_name))]
        yield
        below = path.relative_to(self._names.folder)
        crops = detections.crops(frame.image, shape=self._options.crop, background=self._options.crop_background)
        ids = [-1] * len(crops) if detections.track_id is None else detections.track_id.tolist()
        for i, (crop, folder, track) in enumerate(zip(crops, folders, ids, strict=True)):
            name = f"{below.stem}_{i}{f'_track{track}' * (track >= 0)}{below.suffix}"
            picture = self._names.folder / folder / below.parent / name
            self._check_free(picture, frame)
            write_picture(picture, crop)

    def _folder_of(self, class_id: int, name: str) -> str:
        """The folder of a class, unique even on case-insensitive file systems."""
        if class_id not in self._folders:
            folder = safe_name(name, str(class_id)).encode()[:_MOST_BYTES].decode(errors="ignore").strip()
            is_taken = folder.casefold() in map(str.casefold, self._folders.values())
            self._folders[class_id] = f"{folder}_{class_id}" if is_taken else folder
        return self._folders[class_id]
