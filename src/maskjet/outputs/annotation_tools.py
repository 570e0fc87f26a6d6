"""Pre-annotations for other tools: LabelMe files, and predictions for Label Studio."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections, check_finite
from maskjet.errors import InputError
from maskjet.host.files import replacing
from maskjet.masks import coco_rle
from maskjet.outputs.coco import JsonList
from maskjet.outputs.drawing_threads import beside
from maskjet.outputs.folder import FolderSink, file_of, write_picture
from maskjet.outputs.label_options import LabelOptions
from maskjet.outputs.labels import outlines
from maskjet.sources.frames import Frame
from maskjet.version import __version__

LABELME = ".labelme"
"""Suffix of an output folder of LabelMe files."""
LABEL_STUDIO = ".labelstudio.json"
"""End of the path of an output file of Label Studio tasks."""
_OPTIONS = LabelOptions()
_RUN = 2**16  # most values of a run in Label Studio's RLE
_RUN_BITS = 27  # bits of a run: a 1, 2 bits of size code, 16 of the length minus 1, 8 of the value


class LabelMeFiles(FolderSink):
    """A folder with a .json per frame that LabelMe opens: a polygon for each part of a mask; without masks, rectangles.

    Parts of one detection are a group. Confidence and track are the description. An image is named by its path from the
    folder, so move both; frames that are no image's file become JPEGs beside theirs.
    """

    def __init__(self, path: str, options: LabelOptions = _OPTIONS, **others: Any) -> None:
        super().__init__(path, suffix=".json", **others)
        self._options = options

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame's JSON, and in a thread its image if it is no file; raises InputError if closed."""
        check_finite(detections)
        path = self._names.take(frame.name, frame.index)
        picture = path.with_suffix(".jpg")
        image = file_of(frame) or picture
        if image is picture:
            self._check_free(picture, frame)
            self._threads.add(lambda: beside(lambda: write_picture(picture, frame.image)))
        height, width = detections.image_size
        document: dict[str, Any] = {
            "version": "6.0.0",
            "flags": {},
            "shapes": self._shapes(detections),
            "imageData": None,
            "imagePath": os.path.relpath(image, path.parent),
            "imageHeight": height,
            "imageWidth": width,
        }
        with replacing(path, is_durable=False) as temporary:
            temporary.write(json.dumps(document, allow_nan=False).encode())

    def _shapes(self, detections: Detections) -> list[dict[str, Any]]:
        kind, drawn = "polygon", outlines(detections, self._options) if detections.rle is not None else None
        if drawn is None:
            kind, drawn = "rectangle", [[box.reshape(2, 2)] for box in detections.xyxy]
        shapes: list[dict[str, Any]] = []
        for i, (name, parts) in enumerate(zip(detections.class_name.tolist(), drawn, strict=True)):
            text = f"{detections.confidence[i]:.3f}"
            if detections.track_id is not None and detections.track_id[i] >= 0:
                text += f", track {detections.track_id[i]}"
            group = i if len(parts) > 1 else None
            about: dict[str, Any] = {"label": name, "description": text, "group_id": group}
            shapes += [{**about, "points": part.tolist(), "shape_type": kind, "flags": {}} for part in parts]
        return shapes


class LabelStudioTasks(JsonList):
    """Label Studio tasks with predictions: a brush mask per detection, or a rectangle.

    They are for labelling with an Image "image" and BrushLabels, or RectangleLabels without masks, called "label".
    Images are named by their paths from the working directory, for Label Studio's local storage.
    """

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame's task; raises InputError if the frame is not from an image file."""
        check_finite(detections)
        image = file_of(frame)
        if image is None:
            raise InputError(
                f"source must be image files for {self._path!r}, got {frame.name!r}: write its frames with "
                "-o frames.yolo --yolo-images copy, and take frames.yolo/images as the source."
            )
        url = f"/data/local-files/?d={quote(os.fsencode(os.path.relpath(image)))}"
        scores = detections.confidence.tolist()
        prediction = {
            "model_version": f"maskjet {__version__}",
            "score": float(np.mean(scores)) if scores else 0.0,
            "result": [_region(detections, i, name) for i, name in enumerate(detections.class_name.tolist())],
        }
        self._add([{"data": {"image": url}, "predictions": [prediction]}])


def _region(detections: Detections, i: int, name: str) -> dict[str, Any]:
    """Convert a detection to a region of Label Studio's JSON."""
    height, width = detections.image_size
    if detections.rle is None:
        kind = "rectanglelabels"
        x1, y1, x2, y2 = (detections.xyxy[i].astype(float) * 100 / (width, height, width, height)).tolist()
        value: dict[str, Any] = {"x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1, "rotation": 0}
    else:
        kind = "brushlabels"
        value = {"format": "rle", "rle": list(encode_brush(coco_rle.decode(detections.rle[i])))}
    return {
        "id": str(i),
        "type": kind,
        "from_name": "label",
        "to_name": "image",
        "score": float(detections.confidence[i]),
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "value": {**value, kind: [name]},
    }


def encode_brush(mask: NDArray[np.bool_]) -> bytes:
    """Encode a mask, bool [H, W], as Label Studio's RLE, that of rle-pack over RGBA pixels, row by row."""
    pixels = mask.ravel()
    starts = np.concatenate([[0], np.flatnonzero(pixels[1:] != pixels[:-1]) + 1])
    lengths = 4 * np.diff(starts, append=len(pixels))
    pieces = -(-lengths // _RUN)
    values = np.repeat(pixels[starts], pieces).astype(np.int64) * 255
    sizes = np.full(len(values), _RUN)
    sizes[pieces.cumsum() - 1] = lengths - (pieces - 1) * _RUN
    runs = (0b111 << 24) | (sizes - 1 << 8) | values
    bits = (runs[:, None] >> np.arange(_RUN_BITS)[::-1]).astype(np.uint8) & 1
    # Header: number of values; then, each minus 1, bits per value and of four length sizes; runs use the last.
    header = f"{4 * len(pixels):032b}{7:05b}{2:04b}{3:04b}{7:04b}{15:04b}"
    return np.packbits(np.concatenate([np.frombuffer(header.encode(), np.uint8) & 1, bits.ravel()])).tobytes()
