"""COCO JSON output: a data set, or results of masks or of boxes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import cv2

from maskjet.detections import CocoKind, Detections, coco_annotations
from maskjet.host.files import TemporaryFile, replacing
from maskjet.outputs.label_options import LabelOptions
from maskjet.outputs.labels import outlines
from maskjet.outputs.lines import TextFile
from maskjet.sources.frames import Frame

# Lists of a data set in order, and the prefix of their entries' lines: the first key identifies the list.
_STARTS = {"images": b'{"file_name"', "videos": b'{"height"', "categories": b'{"name"', "annotations": b'{"id"'}
_KINDS: Mapping[str, CocoKind] = {".segm": "segm", ".bbox": "bbox"}  # kind of results, by the suffix before .json
_ENTRIES_AT_ONCE = 1000


class CocoJson(TextFile):
    """A COCO data set, with a score per annotation; or a COCO results list, in .segm.json or .bbox.json.

    An image's id is its frame's index, or with `counts_images` its number in the file, from 0. Category ids are class
    ids, plus one if the model's start at 0. A data set is no list of results: pycocotools' loadRes would take the sizes
    of masks from their boxes.

    Entries are written as they come, one JSON object per line, to a .partial.jsonl beside the file, so that memory does
    not grow and entries survive a crash. `close` builds the file from them.
    """

    def __init__(self, path: str, options: LabelOptions = LabelOptions(), *, counts_images: bool = False) -> None:
        super().__init__(path, suffix=".jsonl")
        self._options, self._counts_images = options, counts_images
        self._kind = _KINDS.get(Path(Path(path).stem).suffix.lower())
        self._annotations = 0
        self._first_id: int | None = None
        self._ids: dict[int, int] = {}  # class id to category id
        self._videos: dict[str, int] = {}
        self._folder = os.path.realpath(Path(path).parent)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame's entries; raises InputError if there are no masks for results of masks."""
        categories = self._new_categories(detections)
        image_id = self._frames if self._counts_images else frame.index
        if self._kind:
            self._add(detections.to_coco(image_id, self._ids, kind=self._kind))
            return
        height, width = detections.image_size
        image = {"file_name": self._name(frame), "id": image_id, "height": height, "width": width}
        entries: list[dict[str, Any]] = [image, *categories]
        if detections.track_id is not None:
            if frame.source not in self._videos:
                self._videos[frame.source] = len(self._videos) + 1
                video = {"id": self._videos[frame.source], "name": frame.source}
                entries.append({"height": height, "width": width, **video})
            image |= {"video_id": self._videos[frame.source], "frame_id": frame.index}
        annotations = coco_annotations(detections, image_id, self._ids)
        if self._options.coco_masks == "polygons" and detections.rle is not None:
            for entry, parts in zip(annotations, outlines(detections, self._options), strict=True):
                entry["segmentation"] = [part.ravel().tolist() for part in parts]
                entry["area"] = sum(map(cv2.contourArea, parts))
        for entry in annotations:
            self._annotations += 1
            entries.append({"id": self._annotations, **entry})
        self._add(entries)

    def _name(self, frame: Frame) -> str:
        """Name of an image, relative to this file if it lies beside or below it."""
        if frame.is_of_video or not os.path.isfile(frame.name):  # noqa: PTH113 - of any text
            return frame.name
        path = Path(os.path.realpath(Path(frame.name).parent), Path(frame.name).name)
        return path.relative_to(self._folder).as_posix() if path.is_relative_to(self._folder) else frame.name

    def _new_categories(self, detections: Detections) -> list[dict[str, Any]]:
        """Category entries for new classes: the model's named ones, and unnamed detected ones."""
        if self._first_id is None:
            self._first_id = 1 if 0 in detections.class_names else 0
        found = zip(detections.class_id.tolist(), detections.class_name, strict=True)
        names = {**dict(found), **detections.class_names}
        new = sorted(names.keys() - self._ids.keys())
        self._ids |= {n: n + self._first_id for n in new}
        return [{"name": names[n], "id": self._ids[n]} for n in new]

    def _add(self, entries: list[dict[str, Any]]) -> None:
        self.append("".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries))

    def _finish(self, temporary: TemporaryFile) -> None:
        with replacing(self._path) as whole:
            if self._kind:
                _copy(temporary.path, b"", whole)
            else:
                self._build(temporary.path, whole)
            whole.write(b"\n")
        temporary.remove()

    def _build(self, entries: Path, whole: TemporaryFile) -> None:
        for name, start in _STARTS.items():
            if name == "videos" and not self._videos:
                continue
            whole.write(f'{"{" if name == "images" else ","}"{name}": '.encode())
            _copy(entries, start, whole)
        whole.write(b"}")


def _copy(entries: Path, start: bytes, whole: TemporaryFile) -> None:
    """Write the entries whose lines begin with `start` as a JSON list."""
    separator = b"[\n"
    with entries.open("rb") as file:
        lines = (line[:-1] for line in file if line.startswith(start))
        while some := list(islice(lines, _ENTRIES_AT_ONCE)):
            whole.write(separator + b",\n".join(some))
            separator = b",\n"
    whole.write(b"[]" if separator == b"[\n" else b"]")
