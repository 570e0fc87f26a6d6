"""Labels in YOLO's text format as output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections, check_finite
from maskjet.files import replacing
from maskjet.media.frames import Frame
from maskjet.media.sinks.pictures import PictureNames
from maskjet.media.sinks.sink import Sink

SUFFIX = ".yolo"
"""Suffix of a folder of labels."""
_NAMES = "names.yaml"


class YoloLabels(Sink):
    """A folder with a .txt per frame in the format of Ultralytics' data sets, ready to be trained on.

    A line is a detection: its class id and, from 0 to 1 in width and height, its outline `x1 y1 x2 y2 ...`; without
    masks its box, `x y width height` by its centre. A mask in several parts is one outline, with its parts joined by
    lines; holes are filled. A frame without detections has an empty file. Files are named like annotated images: by
    their image, or by video and frame number. names.yaml has the classes' names for a data set's file.

    Args:
        path: Path of the folder, made if missing.
        with_confidence: Whether a line ends in the confidence, as with Ultralytics' save_conf; no labels to train on.
        taken: Paths that other sinks write; own ones are added.
        root: Folder whose sub-folders are kept; see `Source.root`.
    """

    def __init__(
        self, path: str, *, with_confidence: bool = False, taken: set[Path] | None = None, root: Path | None = None
    ) -> None:
        self._names = PictureNames(path, set() if taken is None else taken, root=root, suffix=".txt")
        self._with_confidence = with_confidence
        self._has_names = False
        self._names.make_folder(path)
        self.paths = (path,)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame's labels."""
        check_finite(detections)
        if not self._has_names:
            self._write_names(detections)
        shapes = _boxes(detections) if detections.rle is None else _outlines(detections)
        lines = [
            " ".join([str(class_id), *(f"{number:.6g}" for number in shape.clip(0, 1).tolist())])
            for class_id, shape in zip(detections.class_id.tolist(), shapes, strict=True)
        ]
        if self._with_confidence:
            lines = [f"{line} {score:.6g}" for line, score in zip(lines, detections.confidence.tolist(), strict=True)]
        with replacing(self._names.take(frame.name, frame.index), is_durable=False) as temporary:
            temporary.write("".join(f"{line}\n" for line in lines).encode())

    def _write_names(self, detections: Detections) -> None:
        """Write the classes' names as YAML, in JSON's notation, which YAML reads."""
        names = sorted(detections.class_names.items())
        lines = ["names:", *(f"  {class_id}: {json.dumps(name)}" for class_id, name in names)] if names else []
        with replacing(self._names.folder / _NAMES) as temporary:
            temporary.write("".join(f"{line}\n" for line in lines).encode())
        self._has_names = True


def _boxes(detections: Detections) -> list[NDArray[np.float64]]:
    """Each box as centre, width and height."""
    x1, y1, x2, y2 = detections.xyxy.astype(np.float64).T
    height, width = detections.image_size
    boxes = np.stack([(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height], axis=1)
    return list(boxes)


def _outlines(detections: Detections) -> list[NDArray[np.float64]]:
    """Each mask's outline; that of its box if the mask has fewer than three points."""
    height, width = detections.image_size
    outlines = []
    for parts, (x1, y1, x2, y2) in zip(detections.polygons(), detections.xyxy.tolist(), strict=True):
        areas = [part for part in parts if len(part) > 2]
        outline = _join(areas) if areas else np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2)])
        outlines.append((outline / (width, height)).ravel())
    return outlines


def _join(parts: list[NDArray[np.float32]]) -> NDArray[np.floating]:
    """One outline of several: from a near point of the one to the next part, around it, and back."""
    first, *others = sorted(parts, key=len, reverse=True)
    outline: NDArray[np.floating] = first
    for part in others:
        at = int(np.square(outline - part[0]).sum(axis=1).argmin())
        turn = int(np.square(part - outline[at]).sum(axis=1).argmin())
        outline = np.concatenate([outline[: at + 1], part[turn:], part[: turn + 1], outline[at:]])
    return outline
