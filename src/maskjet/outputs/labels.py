"""Labels in YOLO's text format as output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections, check_finite
from maskjet.errors import InputError
from maskjet.host.files import is_same_file, naming, replacing
from maskjet.host.printing import sanitise
from maskjet.outputs.drawing_threads import beside
from maskjet.outputs.folder import IMAGES, FolderSink, copy_file, file_of, write_picture
from maskjet.outputs.label_options import LabelOptions
from maskjet.sources.frames import Frame

SUFFIX = ".yolo"
"""Suffix of an output folder of YOLO labels."""
_HIGHEST = 2**16 - 1  # highest class id; data.yaml has a line for each id below
Line = NDArray[np.floating]


class YoloLabels(FolderSink):
    """YOLO data set for Ultralytics' trainer: labels/ with a .txt per frame, data.yaml, optionally images/.

    A line is a detection: its class id and, from 0 to 1 in width and height, its outline `x1 y1 x2 y2 ...`; without
    masks its box, `x y width height` by its centre; with `rotated_boxes` the four corners of its rotated box, moved to
    the image's edge where they lie outside. Of a mask in several parts the outline is that of the largest, as a trainer
    takes each line for an instance and its extent for its box. Files are named like annotated images. data.yaml has a
    name for each class id from 0, as the trainer wants it. Images that lie in images/ already stay.
    """

    def __init__(self, path: str, options: LabelOptions = LabelOptions(), **others: Any) -> None:
        # Trainers find the labels of an image by replacing the last "/images/".
        super().__init__(path, suffix=".txt", below="labels", **others)
        self._folder, self._options = Path(path).resolve(), options
        self._class_names: dict[int, str] | None = None

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame's labels, and its image in a thread.

        Raises:
            InputError: The image would overwrite one of a source, a class id is negative or too high, or the sink is
                closed.
        """
        check_finite(detections)
        self._write_names(detections)
        shapes = self._shapes(detections)
        lines = []
        for class_id, score, own in zip(
            detections.class_id.tolist(), detections.confidence.tolist(), shapes, strict=True
        ):
            for shape in own:
                numbers = [*shape.ravel().clip(0, 1).tolist(), *([score] if self._options.yolo_confidence else [])]
                lines.append(" ".join([str(class_id), *(f"{number:.6g}" for number in numbers)]))
        path = self._names.take(frame.name, frame.index)
        if self._options.yolo_images != "none":
            self._add_image(frame, path)
        with replacing(path, is_durable=False) as temporary:
            temporary.write("".join(f"{line}\n" for line in lines).encode())

    def _write_names(self, detections: Detections) -> None:
        """Write data.yaml beside the folders it names; again if there are new classes."""
        known = dict(detections.class_names) | (self._class_names or {})
        ids = [*known, *detections.class_id.tolist()]
        if ids and not 0 <= min(ids) <= max(ids) <= _HIGHEST:
            raise InputError(f"class_id must be 0..{_HIGHEST} in YOLO's labels, got {min(ids)}..{max(ids)}.")
        names = {class_id: known.get(class_id, str(class_id)) for class_id in range(max(ids, default=-1) + 1)}
        if names == self._class_names:
            return
        lines = [f"train: {IMAGES}", f"val: {IMAGES}", "names:" if names else "names: {}"]
        lines += [f"  {class_id}: {json.dumps(sanitise(name), ensure_ascii=False)}" for class_id, name in names.items()]
        with replacing(self._folder / "data.yaml") as temporary:
            temporary.write("".join(f"{line}\n" for line in lines).encode())
        self._class_names = names

    def _shapes(self, detections: Detections) -> list[list[Line]]:
        """Shapes of each detection, relative to the image size: outlines of parts, boxes or rotated boxes."""
        if self._options.rotated_boxes:
            return [[corners / detections.image_size[::-1]] for corners in detections.rotated_boxes()]
        if detections.rle is None:
            return _boxes(detections)
        shapes = []
        for parts in outlines(detections, self._options):
            lines = [max(parts, key=cv2.contourArea)] if self._options.yolo_parts == "largest" else parts
            shapes.append([line / detections.image_size[::-1] for line in lines])
        return shapes

    def _add_image(self, frame: Frame, labels: Path) -> None:
        """Copy or link the image to where trainers look for it."""
        source = file_of(frame)
        suffix = ".jpg" if source is None else source.suffix
        path = (self._folder / IMAGES / labels.relative_to(self._names.folder)).with_suffix(suffix)
        if source is not None and is_same_file(path, source):
            return
        self._check_free(path, frame)
        if source is None:
            self._threads.add(lambda: beside(lambda: write_picture(path, frame.image)))
        elif self._options.yolo_images == "copy":
            self._threads.add(lambda: beside(lambda: copy_file(path, source)))
        else:
            with naming(str(path)):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.symlink_to(source.resolve())


def outlines(detections: Detections, options: LabelOptions) -> list[list[Line]]:
    """Outlines of each detection's parts along pixel edges; of its box if its mask is empty."""
    found = detections.polygons(tolerance=options.polygon_tolerance, along="edges")
    return [
        parts or [np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2)], np.float32)]
        for parts, (x1, y1, x2, y2) in zip(found, detections.xyxy.tolist(), strict=True)
    ]


def _boxes(detections: Detections) -> list[list[Line]]:
    """Boxes within the image as cxcywh, relative to the image size, 0..1."""
    height, width = detections.image_size
    x1, y1, x2, y2 = detections.xyxy.astype(np.float64).clip(0, (width, height, width, height)).T
    boxes = np.stack([(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height], axis=1)
    return [[box] for box in boxes]
