"""Labels in YOLO's text format as output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections, check_finite
from maskjet.files import replacing
from maskjet.media.frames import Frame
from maskjet.media.sinks.pictures import PictureNames
from maskjet.media.sinks.sink import Sink

SUFFIX = ".yolo"
"""Suffix of a folder of labels."""
Parts = Literal["largest", "all"]
"""Which parts of a mask become a line of labels."""
_NAMES = "names.yaml"


class YoloLabels(Sink):
    """A folder with a .txt per frame in the format of Ultralytics' data sets, ready to be trained on.

    A line is a detection: its class id and, from 0 to 1 in width and height, its outline `x1 y1 x2 y2 ...`; without
    masks its box, `x y width height` by its centre. Of a mask in several parts it is the outline of the largest, as a
    trainer takes each line for an instance and its extent for its box; holes are filled. A frame without detections has
    an empty file. Files are named like annotated images: by their image, or by video and frame number. names.yaml has
    the classes' names for a data set's file.

    Args:
        path: Path of the folder, made if missing.
        parts: "largest", or "all" for a line of each part of three points or more.
        with_confidence: Whether a line ends in the confidence, as with Ultralytics' save_conf; no labels to train on.
        taken: Paths that other sinks write; own ones are added.
        root: Folder whose sub-folders are kept; see `Source.root`.
    """

    def __init__(
        self,
        path: str,
        *,
        parts: Parts = "largest",
        with_confidence: bool = False,
        taken: set[Path] | None = None,
        root: Path | None = None,
    ) -> None:
        self._names = PictureNames(path, set() if taken is None else taken, root=root, suffix=".txt")
        self._parts, self._with_confidence = parts, with_confidence
        self._has_names = False
        self._names.make_folder(path)
        self.paths = (path,)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame's labels."""
        check_finite(detections)
        if not self._has_names:
            self._write_names(detections)
        shapes = _boxes(detections) if detections.rle is None else self._outlines(detections)
        lines = []
        for class_id, score, own in zip(
            detections.class_id.tolist(), detections.confidence.tolist(), shapes, strict=True
        ):
            for shape in own:
                numbers = [*shape.ravel().clip(0, 1).tolist(), *([score] if self._with_confidence else [])]
                lines.append(" ".join([str(class_id), *(f"{number:.6g}" for number in numbers)]))
        with replacing(self._names.take(frame.name, frame.index), is_durable=False) as temporary:
            temporary.write("".join(f"{line}\n" for line in lines).encode())

    def _write_names(self, detections: Detections) -> None:
        """Write the classes' names as YAML, in JSON's notation, which YAML reads."""
        names = sorted(detections.class_names.items())
        lines = ["names:", *(f"  {class_id}: {json.dumps(name)}" for class_id, name in names)] if names else []
        with replacing(self._names.folder / _NAMES) as temporary:
            temporary.write("".join(f"{line}\n" for line in lines).encode())
        self._has_names = True

    def _outlines(self, detections: Detections) -> list[list[NDArray[np.floating]]]:
        """Per detection the outlines of its mask's parts; that of its box if no part has three points."""
        shapes = []
        for parts, (x1, y1, x2, y2) in zip(detections.polygons(), detections.xyxy.tolist(), strict=True):
            areas: list[NDArray[np.floating]] = [part for part in parts if len(part) > 2]
            if areas and self._parts == "largest":
                areas = [max(areas, key=_count_pixels)]
            areas = areas or [np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2)])]
            shapes.append([area / detections.image_size[::-1] for area in areas])
        return shapes


def _boxes(detections: Detections) -> list[list[NDArray[np.floating]]]:
    """Per detection its box as centre, width and height."""
    x1, y1, x2, y2 = detections.xyxy.astype(np.float64).T
    height, width = detections.image_size
    boxes = np.stack([(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height], axis=1)
    return [[box] for box in boxes]


def _count_pixels(outline: NDArray[np.float32]) -> float:
    """The number of pixels in an outline through the centres of border pixels, holes filled, by Pick's theorem."""
    steps = np.abs(outline - np.roll(outline, 1, axis=0)).max(axis=1).sum()
    return cv2.contourArea(outline) + float(steps) / 2 + 1
