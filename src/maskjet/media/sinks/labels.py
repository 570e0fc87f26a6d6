"""Labels in YOLO's text format as output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections, check_finite
from maskjet.drawing.showing import encode
from maskjet.errors import InputError
from maskjet.files import is_same_file, naming, replacing
from maskjet.label_options import LabelOptions
from maskjet.media.frames import Frame
from maskjet.media.sinks.drawing_thread import DrawingThread
from maskjet.media.sinks.pictures import FileId, PictureNames, id_of
from maskjet.media.sinks.sink import Sink

SUFFIX = ".yolo"
"""Suffix of a folder of labels."""
Line = NDArray[np.floating]
_IMAGES, _LABELS = "images", "labels"  # folders; trainers find an image's labels by replacing the last "/images/"
_KEPT = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")  # images that trainers read as they are
_OPTIONS = LabelOptions()


class LabelNames(PictureNames):
    """Chooses a path of its own for each frame's labels; arguments are those of `YoloLabels`."""

    def __init__(self, path: str, taken: set[Path], *, root: Path | None = None) -> None:
        super().__init__(str(Path(path) / _LABELS), taken, root=root, suffix=".txt")

    def _sub_folder(self, image: Path) -> Path:
        return Path(*(part for part in super()._sub_folder(image).parts if part != _IMAGES))


class YoloLabels(Sink):
    """A folder that Ultralytics' trainer reads: labels/ with a .txt per frame, data.yaml and, if asked for, images/.

    A line is a detection: its class id and, from 0 to 1 in width and height, its outline `x1 y1 x2 y2 ...`; without
    masks its box, `x y width height` by its centre. Outlines run along the pixels' edges, so that the box that a
    trainer takes from one is the mask's. Of a mask in several parts it is the outline of the largest, as a trainer
    takes each line for an instance and its extent for its box. A frame without detections has an empty file. Files are
    named like annotated images: by their image, or by video and frame number. data.yaml has a name for each class id
    from 0, as the trainer wants it; ids without a name are their own.

    Args:
        path: Path of the folder, made if missing.
        options: Parts, holes and points of the outlines, and whether there are confidences and images.
        taken: Paths that other sinks write; own ones are added.
        sources: Files that must not be overwritten. Images that lie in images/ already stay.
        root: Folder whose sub-folders are kept, but for those called images; see `Source.root`.
    """

    def __init__(
        self,
        path: str,
        options: LabelOptions = _OPTIONS,
        *,
        taken: set[Path] | None = None,
        sources: Collection[FileId] = (),
        root: Path | None = None,
    ) -> None:
        self._names = LabelNames(path, set() if taken is None else taken, root=root)
        self._options, self._sources = options, sources
        self._class_names: dict[int, str] | None = None
        self._thread = DrawingThread()
        self._names.make_folder(path)
        self.paths = (path,)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame's labels, and its image in a thread.

        Raises:
            InputError: The image would overwrite one of a source, or the sink is closed.
        """
        check_finite(detections)
        self._write_names(detections)
        shapes = _boxes(detections) if detections.rle is None else self._outlines(detections)
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
        """Write data.yaml, whose folders are beside it, once more if there are new classes."""
        known = dict(detections.class_names) | (self._class_names or {})
        ids = range(max([*known, *detections.class_id.tolist()], default=-1) + 1)
        names = {class_id: known.get(class_id, str(class_id)) for class_id in ids}
        if names == self._class_names:
            return
        lines = [f"train: {_IMAGES}", f"val: {_IMAGES}", "names:" if names else "names: {}"]
        lines += [f"  {class_id}: {json.dumps(name)}" for class_id, name in names.items()]  # YAML reads JSON's notation
        with replacing(self._names.folder.parent / "data.yaml") as temporary:
            temporary.write("".join(f"{line}\n" for line in lines).encode())
        self._class_names = names

    def _outlines(self, detections: Detections) -> list[list[Line]]:
        """Per detection the outlines of its mask's parts, from 0 to 1."""
        shapes = []
        for parts in outlines(detections, self._options):
            lines = [max(parts, key=cv2.contourArea)] if self._options.yolo_parts == "largest" else parts
            shapes.append([line / detections.image_size[::-1] for line in lines])
        return shapes

    def _add_image(self, frame: Frame, labels: Path) -> None:
        """Put the image where the trainer looks for that of these labels."""
        source = Path(frame.name)
        is_kept = not frame.is_of_video and source.suffix.lower() in _KEPT and source.is_file()
        folder = self._names.folder.parent / _IMAGES / labels.relative_to(self._names.folder).parent
        path = folder / (labels.stem + (source.suffix if is_kept else ".jpg"))
        with naming(str(path)):
            if is_kept and is_same_file(path, source):
                return
            if path.exists() and id_of(path) in self._sources:
                raise InputError(f"out must not be where the source is, {str(path)!r} would be overwritten.")
        if is_kept and self._options.yolo_images == "link":
            with naming(str(path)):
                folder.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.symlink_to(source.resolve())
        else:
            self._thread.add(lambda: _write_image(path, frame, source if is_kept else None))

    def close(self) -> None:
        """Wait until all images are written."""
        error = None if self._thread.is_closed else self._thread.close()
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Wait until all images are written; each is whole."""
        self._thread.close()


def outlines(detections: Detections, options: LabelOptions) -> list[list[Line]]:
    """Per detection the outlines of its mask's parts along the pixels' edges; that of its box if it has no pixel."""
    tolerance, holes = options.polygon_tolerance, options.polygon_holes
    found = detections.polygons(tolerance=tolerance, holes=holes, along="edges")
    return [
        parts or [np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2)], np.float32)]
        for parts, (x1, y1, x2, y2) in zip(found, detections.xyxy.tolist(), strict=True)
    ]


def _write_image(path: Path, frame: Frame, source: Path | None) -> None:
    """Copy a frame's file, or encode its pixels."""
    with replacing(path, suffix="", is_durable=False) as temporary:
        if source is None:
            temporary.write(encode(frame.image, path.suffix.lower(), name=repr(str(path))))
        else:
            with source.open("rb") as file:
                shutil.copyfileobj(file, temporary.file)


def _boxes(detections: Detections) -> list[list[Line]]:
    """Per detection its box as centre, width and height."""
    x1, y1, x2, y2 = detections.xyxy.astype(np.float64).T
    height, width = detections.image_size
    boxes = np.stack([(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height], axis=1)
    return [[box] for box in boxes]
