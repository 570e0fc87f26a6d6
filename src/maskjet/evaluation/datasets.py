"""Read annotated data sets in common layouts: COCO, CVAT, Roboflow, and YOLO with data.yaml."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.errors import InputError, SourceError, explain, suggest, translate_errors
from maskjet.host.extras import require
from maskjet.host.files import is_same_file
from maskjet.host.printing import as_utf8, sanitise
from maskjet.parity.coco_files import check_truth, read_json
from maskjet.sources.folders import is_image_path
from maskjet.sources.frames import ListSource, Source
from maskjet.sources.image_headers import stated_size_hw
from maskjet.sources.images import read_file
from maskjet.sources.pillow_images import stated_orientation

_ROBOFLOW = "_annotations.coco.json"
_PREFIX = "instances_"  # prefix of COCO's and CVAT's files in annotations/
_YOLO_SPLITS = ("val", "valid", "test", "train")
_LARGEST_YAML = 2**20  # largest data.yaml, in bytes
_EDGE = 1e-3  # tolerance of coordinates outside 0..1, due to rounding; they are clamped
_NAMED = 20  # most names listed in a message


class _Place(NamedTuple):
    """Paths of one split of a data set."""

    annotations: Path
    """Path of the COCO annotations; for YOLO of data.yaml."""
    images: Path
    """Folder to which image names are relative."""
    folders: Sequence[Path] = ()
    """Image folders of a YOLO data set; empty for COCO."""


@dataclass(frozen=True)
class DataSet:
    """Images with annotations, in one of these layouts, whose files are found below a folder.

    annotations.json with images/; annotations/instances_SPLIT.json with SPLIT/, images/SPLIT/ or images/ (COCO, CVAT);
    SPLIT/_annotations.coco.json beside the images (Roboflow); data.yaml with images/ and labels/ (YOLO).
    """

    folder: Path
    """Folder of the data set, or its description file, such as data.yaml."""
    split: str | None = None
    """Name of the split; None for the only one, or else one whose name begins with val, valid or test."""

    @property
    def length(self) -> int:
        """Number of images that the annotations list."""
        return len(self._listed)

    @property
    def images(self) -> Path:
        """Folder to which the images' names are relative."""
        return self._place.images

    def open(self) -> Source:
        """Open the images as a source; frames are named by their paths."""
        return ListSource([self.images / name for name in self._listed], str(self.folder))

    def truth(self) -> dict[str, Any]:
        """Annotations as a COCO data set; raises SourceError if unreadable, InputError for invalid entries."""
        return self._checked

    def check_images(self) -> None:
        """Raise SourceError if images are missing or differ in size from annotations; reads only headers."""
        folder = self._place.images
        missing = [name for name in self._listed if not os.path.isfile(folder / name)]  # noqa: PTH113 - of any length
        if missing:
            count = f"{len(missing)} of {self.length}"
            raise SourceError(f"images must all be in {str(folder)!r}, {count} are missing: {shorten(missing)}.")
        for name, image in zip(self._listed, self.truth()["images"], strict=True):
            size, stated = _measure(folder / name), (image["height"], image["width"])
            if size not in (None, stated):
                raise SourceError(
                    f"images must have the annotated (height, width), {str(folder / name)!r} has {size}, not {stated}."
                )

    @cached_property
    def _place(self) -> _Place:
        is_file = self.folder.is_file()
        folder = self.folder.parent if is_file else self.folder
        place = _choose(_find_splits(folder), self.split, folder)
        if is_file and not is_same_file(place.annotations, self.folder):
            raise SourceError(f"data must be a folder or {place.annotations.name!r} in it, got {str(self.folder)!r}.")
        return place

    @cached_property
    def _data_set(self) -> dict[str, Any]:
        if self._place.folders:
            return _read_yolo(self._place)
        path = self._place.annotations
        found = read_json(path)
        if not isinstance(found, dict) or not {"images", "annotations", "categories"} <= found.keys():
            raise SourceError(f"{str(path)!r} must be a COCO data set, it lacks images, annotations or categories.")
        return found

    @cached_property
    def _checked(self) -> dict[str, Any]:
        check_truth(self._data_set, repr(str(self._place.annotations)))
        return self._data_set

    @cached_property
    def _listed(self) -> list[str]:
        """The images' file names, checked to be unique and within the folder."""
        path, listed = str(self._place.annotations), self._data_set["images"]
        entries = listed if isinstance(listed, list) else [None]
        names: list[Any] = [entry.get("file_name") if isinstance(entry, dict) else None for entry in entries]
        if not all(isinstance(name, str) for name in names):
            raise SourceError(f"{path!r} must have a 'file_name' in each of its images.")
        for name in names:
            if PurePath(name).is_absolute() or ".." in PurePath(name).parts or "\0" in name:
                raise SourceError(f"{path!r} must have images within its folder, got {name!r}.")
            if as_utf8(name) != name:
                raise SourceError(f"{path!r} must have images with names in UTF-8, rename {name!r}.")
        if more := len(names) - len(set(map(PurePath, names))):
            raise SourceError(f"{path!r} must have each image once, got {more} more.")
        return names


def shorten(names: Sequence[str]) -> str:
    """Join at most twenty names for a message."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(sanitise, names[:_NAMED])) + more or "none"


def _find_splits(folder: Path) -> dict[str, _Place]:
    """Find the splits of a data set, by name; a single one is named ""."""
    with translate_errors(SourceError, f"data must be a readable folder, {str(folder)!r} is not"):
        if (folder / "data.yaml").is_file():
            return _yolo_splits(folder)
        if (folder / _ROBOFLOW).is_file():
            return {"": _Place(folder / _ROBOFLOW, folder)}
        if (folder / "annotations.json").is_file():
            return {"": _Place(folder / "annotations.json", folder / "images")}
        found = {path.parent.name: _Place(path, path.parent) for path in folder.glob(f"*/{_ROBOFLOW}")}
        for path in folder.glob(f"annotations/{_PREFIX}*.json"):
            name = path.stem.removeprefix(_PREFIX)
            places = (folder / name, folder / "images" / name, folder / "images")
            found[name] = _Place(path, next((place for place in places if place.is_dir()), places[0]))
    if not found:
        wanted = f"annotations.json, annotations/{_PREFIX}*.json, {_ROBOFLOW} or data.yaml"
        raise SourceError(f"data must be a folder with {wanted}, {str(folder)!r} has none of them.")
    return dict(sorted(found.items()))


def _choose(splits: Mapping[str, _Place], split: str | None, folder: Path) -> _Place:
    if split is None:
        split = next((name for start in ("val", "test") for name in splits if name.startswith(start)), None)
        if len(splits) > 1 and split is None:
            raise InputError(f"split must be given for {str(folder)!r}, it has {shorten(list(splits))}.")
        return splits[next(iter(splits)) if split is None else split]
    if split not in splits:
        end = suggest(split, splits, lists=len(splits) > 1)
        raise InputError(f"split must be one of {str(folder)!r}, got {split!r}{end}")
    return splits[split]


def _yolo_splits(folder: Path) -> dict[str, _Place]:
    file = folder / "data.yaml"
    stated, found = _read_yaml(file), {}
    for name in _YOLO_SPLITS:
        value = stated.get(name)
        if value:
            values = value if isinstance(value, list) else [value]
            found[name] = _Place(file, folder, [_find_below(folder, stated.get("path"), each) for each in values])
    if not found:
        raise SourceError(f"{str(file)!r} must have a folder of images as 'val', 'test' or 'train'.")
    return found


def _find_below(folder: Path, base: Any, value: Any) -> Path:
    """Resolve a folder named in data.yaml; Roboflow writes "../" for folders beside the file."""
    if isinstance(value, str) and isinstance(base, str | None):
        inner = value.removeprefix("../")
        for place in (folder / (base or "") / inner, folder / inner):
            if place.is_relative_to(folder) and ".." not in place.parts[len(folder.parts) :] and place.is_dir():
                return place
    got = reprlib.repr(value)
    raise SourceError(f"{str(folder / 'data.yaml')!r} must name folders of images below its own, got {got}.")


def _read_yaml(path: Path) -> dict[str, Any]:
    yaml = require("yaml", extra="coco", purpose="a data set with data.yaml")
    with translate_errors(SourceError, f"{str(path)!r} must be YAML"):
        plain = type("Plain", (yaml.SafeLoader,), {"flatten_mapping": lambda *_: None})  # a few expand to billions
        stated = yaml.load(limits.read_small(path, _LARGEST_YAML).decode(), plain)
    if not isinstance(stated, dict):
        raise SourceError(f"{str(path)!r} must have fields, as 'names' and 'val'.")
    return stated


def _read_yolo(place: _Place) -> dict[str, Any]:
    """Convert YOLO to COCO: image ids count from 0 in order of names; category ids are those in labels."""
    stated = _read_yaml(place.annotations).get("names")
    names = dict(enumerate(stated)) if isinstance(stated, list) else stated if isinstance(stated, dict) else {}
    if not names or any(type(number) is not int or type(name) not in (str, int) for number, name in names.items()):
        raise SourceError(f"{str(place.annotations)!r} must have a list as 'names', or names by number.")
    paths = sorted(p for folder in place.folders for p in folder.rglob("*") if is_image_path(p) and p.is_file())
    labels = [_label_of(path) for path in paths]
    total = sum(path.stat().st_size for path in labels if path.is_file())
    limits.check("json_bytes", total, f"labels of {str(place.annotations)!r} have", SourceError)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (path, label) in enumerate(zip(paths, labels, strict=True)):
        height, width = _measure(path) or (1, 1)  # unreadable images are reported when read
        name = path.relative_to(place.images).as_posix()
        images.append({"id": number, "file_name": name, "height": height, "width": width})
        if label.is_file():
            for each in _read_labels(label, names, (height, width)):
                annotations.append({"id": len(annotations) + 1, "image_id": number, **each})
    categories = [{"id": number, "name": str(name)} for number, name in names.items()]
    return {"images": images, "annotations": annotations, "categories": categories}


def _label_of(image: Path) -> Path:
    """Path of an image's label file: in labels/ in place of the last images/, or else beside it."""
    parts = list(image.with_suffix(".txt").parts)
    if "images" in parts[:-1]:
        parts[len(parts) - 1 - parts[::-1].index("images", 1)] = "labels"
    return Path(*parts)


def _read_labels(path: Path, names: Mapping[int, Any], size_hw: tuple[int, int]) -> list[dict[str, Any]]:
    """Parse a label file: per line a class, then a box cx, cy, w, h or an outline x, y, …."""
    found = []
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise SourceError(f"{str(path)!r} must be readable labels: {explain(error)}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number} of {str(path)!r}"
        try:
            category, *values = map(float, line.split())
        except ValueError:
            raise SourceError(f"{where} must be numbers, got {line[:40]!r}.") from None
        if category not in names:
            raise SourceError(f"{where} must begin with a class of data.yaml, 0 to {max(names)}, got {category:g}.")
        if len(values) != 4 and (len(values) < 6 or len(values) % 2):
            raise SourceError(
                f"{where} must have a class with 4 numbers of a box, or an x and y for each of 3 or more "
                f"points, got {len(values)} numbers."
            )
        if not all(-_EDGE <= value <= 1 + _EDGE for value in values):
            raise SourceError(f"{where} must have coordinates of 0..1, shares of the image's sides.")
        found.append(_annotate(int(category), np.clip(values, 0, 1), size_hw))
    return found


def _annotate(category: int, values: NDArray[np.float64], size_hw: tuple[int, int]) -> dict[str, Any]:
    """Convert a label line to a COCO annotation; a box gives no segmentation."""
    points, shape = values.reshape(-1, 2) * size_hw[::-1], {}
    if len(values) == 4:
        (middle, size), area = points, float(math.prod(points[1]))
        low = middle - size / 2
    else:
        low, size = points.min(axis=0), np.ptp(points, axis=0)
        area, shape = float(cv2.contourArea(points.astype(np.float32))), {"segmentation": [points.ravel().tolist()]}
    return {"category_id": category, "bbox": [*low.tolist(), *size.tolist()], "area": area, "iscrowd": 0, **shape}


def _measure(path: Path) -> tuple[int, int] | None:
    """(height, width) of an image file, upright; None if its header has none."""
    data = read_file(path)
    size = stated_size_hw(data)
    return (size[1], size[0]) if size is not None and stated_orientation(data) >= 5 else size
