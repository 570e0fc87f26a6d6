"""Read annotated data sets in common layouts: COCO, CVAT, Roboflow, and YOLO with data.yaml."""

from __future__ import annotations

import io
import math
import os
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import cv2
import numpy as np

from maskjet import limits
from maskjet.errors import InputError, SourceError, explain, suggest, translate_errors
from maskjet.host.extras import require
from maskjet.host.printing import as_utf8, sanitise
from maskjet.parity.coco_files import check_truth, read_json, tidy
from maskjet.sources.folders import is_image_path, is_visible, list_folder
from maskjet.sources.frames import ListSource, Source
from maskjet.sources.image_headers import stated_size_hw
from maskjet.sources.images import read_file
from maskjet.sources.pillow_images import stated_orientation

_ROBOFLOW = "_annotations.coco.json"
_PREFIX = "instances_"  # prefix of COCO's and CVAT's files in annotations/
_YOLO_SPLITS = ("val", "valid", "validation", "test", "train")
_YAML = (".yaml", ".yml")
_LARGEST_YAML = 2**20  # largest data.yaml, in bytes
_LARGEST_LIST = 2**26  # largest list of images that it names, in bytes
_EDGE = 0.01  # by how much YOLO's boxes may be outside 0..1, as for Ultralytics
_NAMED = 20  # most names listed in a message


class _Place(NamedTuple):
    """Paths of one split of a data set."""

    annotations: Path
    """Path of the COCO annotations; for YOLO of data.yaml."""
    folders: Sequence[Any]
    """Folders to which image names may be relative; for YOLO the split's values in data.yaml."""
    fields: Mapping[str, Any] | None = None
    """Content of data.yaml; None for COCO."""


@dataclass(frozen=True)
class DataSet:
    """Images with annotations, in one of these layouts, whose files are found below a folder.

    annotations.json with images/; annotations/instances_SPLIT.json with SPLIT/, images/SPLIT/ or images/ (COCO, CVAT);
    SPLIT/_annotations.coco.json beside the images (Roboflow); data.yaml with images/ and labels/ (YOLO). Given by their
    path, COCO's file and the YAML may have any name.
    """

    folder: Path
    """Folder of the data set, or its annotations' file, or data.yaml."""
    split: str | None = None
    """Name of the split; None for the only one, or else one whose name begins with val, valid or test."""

    @property
    def length(self) -> int:
        """Number of images that the annotations list."""
        return len(self._listed)

    @cached_property
    def images(self) -> Path:
        """Folder to which the images' names are relative."""
        if self._place.fields is not None:
            return self._place.annotations.parent
        folders: Sequence[Path] = self._place.folders
        holding = (each for each in folders if any(os.path.isfile(each / name) for name in self._listed))  # noqa: PTH113
        return next(holding, next(filter(Path.is_dir, folders), folders[0]))

    @property
    def notes(self) -> list[str]:
        """Sentences on what the annotations hold that is left out."""
        return [f"left out: {count} {name}." for name, count in self._read[1].items() if count]

    def open(self) -> Source:
        """Open the images as a source; frames are named by their paths."""
        return ListSource([self.images / name for name in self._listed], str(self.folder), are_images=True)

    def truth(self) -> dict[str, Any]:
        """Annotations as a COCO data set; raises SourceError if unreadable, InputError for invalid entries."""
        return self._checked

    def check_images(self) -> None:
        """Raise SourceError if images are missing or differ in size from annotations; reads only headers."""
        folder = self.images
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
        return _choose(_find_splits(self.folder), self.split, self.folder)

    @cached_property
    def _read(self) -> tuple[dict[str, Any], Counter[str]]:
        path, fields = self._place.annotations, self._place.fields
        if fields is not None:
            return _read_yolo(path, fields, self._place.folders)
        found = read_json(path)
        if not isinstance(found, dict) or not {"images", "annotations", "categories"} <= found.keys():
            raise SourceError(f"{str(path)!r} must be a COCO data set, it lacks images, annotations or categories.")
        return tidy(found, repr(str(path)))

    @cached_property
    def _checked(self) -> dict[str, Any]:
        check_truth(truth := self._read[0], repr(str(self._place.annotations)))
        return truth

    @cached_property
    def _listed(self) -> list[str]:
        """The images' file names, checked to be unique and within the folder."""
        path = str(self._place.annotations)
        names: list[Any] = [entry.get("file_name") for entry in self._read[0]["images"]]
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
    """Find the splits of a data set, by name; a single one, as that of a COCO file, is named ""."""
    with translate_errors(SourceError, f"data must be a readable folder, {str(folder)!r} is not"):
        yaml = folder / "data.yaml"
        for file in (folder, yaml, folder / _ROBOFLOW, folder / "annotations.json"):
            if file.is_file():
                return _yolo_splits(file) if file.suffix.lower() in _YAML else {"": _place_of(file)}
        files = [path for path in folder.glob(f"*/{_ROBOFLOW}") if is_visible(path.parent.name)]
        found = {path.parent.name: _place_of(path) for path in files}
        for path in folder.glob(f"annotations/{_PREFIX}*.json"):
            found[path.stem.removeprefix(_PREFIX)] = _place_of(path)
        others = [path for path in folder.glob("*") if path.suffix.lower() in _YAML and is_visible(path.name)]
        if not found and len(others) == 1:
            return _yolo_splits(others[0])
    if not found:
        wanted = f"annotations.json, annotations/{_PREFIX}*.json, {_ROBOFLOW} or data.yaml"
        raise SourceError(f"data must be a folder with {wanted}, or a file, {str(folder)!r} has none of them.")
    return dict(sorted(found.items()))


def _place_of(path: Path) -> _Place:
    """The place of a COCO file, with the folders where its images may lie."""
    folder, above = path.parent, path.parent.parent
    if folder.name != "annotations":
        return _Place(path, (folder / "images", folder))
    name = path.stem.removeprefix(_PREFIX)
    return _Place(path, (above / name, above / "images" / name, above / "images", above, folder / "images", folder))


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


def _yolo_splits(file: Path) -> dict[str, _Place]:
    stated = _read_yaml(file)
    values = {name: stated[name] for name in _YOLO_SPLITS if stated.get(name)}
    if not values:
        raise SourceError(f"{str(file)!r} must have a folder of images as 'val', 'test' or 'train'.")
    return {name: _Place(file, value if isinstance(value, list) else [value], stated) for name, value in values.items()}


def _has_images(path: Path) -> bool:
    return os.path.isdir(path) or (path.suffix == ".txt" and os.path.isfile(path))  # noqa: PTH112, PTH113 - of any length


def _find_below(file: Path, base: Any, value: Any, is_right: Callable[[Path], bool]) -> Path:
    """Resolve a path in data.yaml, or in its lists; Roboflow writes "../" for folders beside the file."""
    if isinstance(value, str) and isinstance(base, str | None):
        start, value = file.parent / (base or ""), value.replace("\\", "/")
        inner = value.removeprefix("../")
        for place in (start / value, start / inner, file.parent / inner):
            inside = _below(file.parent, place)
            if inside is not None and is_right(inside):
                return inside
    raise SourceError(f"{str(file)!r} must name folders of images below its own, got {reprlib.repr(value)}.")


def _below(folder: Path, path: Path) -> Path | None:
    """A path as one that begins with the folder it lies in; None if it doesn't, by name or by its links."""
    for spell in (os.path.abspath, os.path.realpath):
        whole, root = Path(spell(path)), Path(spell(folder))
        if whole.is_relative_to(root):
            return folder / whole.relative_to(root)
    return None


def _list_images(file: Path, place: Path) -> list[Path]:
    """The images of a folder, as `run` lists them, or of a list with a path a line, relative to it."""
    if place.is_dir():
        return [path for path in list_folder(str(place), recursive=True) if is_image_path(path)]
    with translate_errors(SourceError, f"{str(place)!r} must be a list of images"):
        text = io.StringIO(limits.read_small(place, _LARGEST_LIST).decode("utf-8-sig"))
        lines = dict.fromkeys(line.strip() for line in text)
        base = os.path.relpath(place.parent, file.parent)
        return [_find_below(file, base, line, os.path.isfile) for line in lines if line]


def _read_yaml(path: Path) -> dict[str, Any]:
    yaml = require("yaml", extra="coco", purpose="a data set with data.yaml")
    with translate_errors(SourceError, f"{str(path)!r} must be YAML"):
        stated = yaml.load(limits.read_small(path, _LARGEST_YAML).decode(), yaml.BaseLoader)  # all scalars are text
    if not isinstance(stated, dict):
        raise SourceError(f"{str(path)!r} must have fields, as 'names' and 'val'.")
    return {key: value for key, value in stated.items() if value not in ("", "null", "~")}


def _read_yolo(file: Path, stated: Mapping[str, Any], values: Sequence[Any]) -> tuple[dict[str, Any], Counter[str]]:
    """Convert YOLO's folders and .txt lists of images to COCO, with the labels' ids; also counts what is left out."""
    left_out, found = Counter[str](), [_find_below(file, stated.get("path"), value, _has_images) for value in values]
    places = {os.path.realpath(place): place for place in found}.values()
    with translate_errors(SourceError, f"{str(file)!r} must have a list as 'names', or names by number"):
        names = _read_names(stated.get("names"))
    with translate_errors(SourceError, f"{str(file)!r} must have two numbers as 'kpt_shape'"):
        keypoints = _count_keypoints(stated.get("kpt_shape"))
    listed = (path for place in places for path in _list_images(file, place))
    paths = list({(os.path.realpath(path.parent), path.name): path for path in listed}.values())
    labels = [_label_of(path) for path in paths]
    total = sum(label.stat().st_size for label in labels if label)
    limits.check("json_bytes", total, f"labels of {str(file)!r} have", SourceError)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (path, label) in enumerate(zip(paths, labels, strict=True)):
        height, width = _measure(path) or (1, 1)  # unreadable images are reported when read
        name = path.relative_to(file.parent).as_posix()
        images.append({"id": number, "file_name": name, "height": height, "width": width})
        left_out["missing files of labels, whose images count as empty"] += label is None
        for each in _read_labels(label, names, (height, width), keypoints, left_out) if label else ():
            annotations.append({"id": len(annotations) + 1, "image_id": number, **each})
    categories = [{"id": number, "name": name} for number, name in names.items()]
    return {"images": images, "annotations": annotations, "categories": categories}, left_out


def _read_names(stated: Any) -> dict[int, str]:
    """Class names by number; raises ValueError for others."""
    names = dict(enumerate(stated)) if isinstance(stated, list) else stated if isinstance(stated, dict) else {}
    if not names or not all(re.fullmatch("[0-9]{1,9}", str(key)) for key in names):
        raise ValueError(f"got {reprlib.repr(stated)}.")
    if wrong := [name for name in names.values() if not isinstance(name, str)]:
        raise ValueError(f"got {reprlib.repr(wrong[0])} as a name.")
    return {int(key): name for key, name in names.items()}


def _count_keypoints(stated: Any) -> int:
    """Numbers of a box's keypoints, of a shape as text; raises ValueError for others."""
    shape = stated or ["0"]
    if not isinstance(shape, list) or not all(re.fullmatch("[0-9]{1,4}", each) for each in shape):
        raise ValueError(f"got {reprlib.repr(stated)}.")
    return math.prod(map(int, shape))


def _label_of(image: Path) -> Path | None:
    """An image's label file: in labels/ in place of the last images/, which may be above the data set; or beside it."""
    parts = list(image.absolute().with_suffix(".txt").parts)
    if "images" in parts[:-1]:
        parts[len(parts) - 1 - parts[::-1].index("images", 1)] = "labels"
    path = Path(*parts)
    return path if os.path.isfile(path) else None  # noqa: PTH113 - of any length


def _read_labels(
    path: Path, names: Mapping[int, str], size_hw: tuple[int, int], keypoints: int, left_out: Counter[str]
) -> list[dict[str, Any]]:
    """Parse a label file: per line a class, then a box cx, cy, w, h or an outline x, y, …, perhaps a confidence.

    Boxes may end in so many numbers of keypoints. Equal lines count once, as for Ultralytics.
    """
    found: dict[tuple[float, bytes], dict[str, Any]] = {}
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
        if keypoints and len(values) == 4 + keypoints:
            left_out["sets of keypoints, whose boxes are scored"] += 1
            values = values[:4]
        elif not keypoints and len(values) > 4 and len(values) % 2:
            left_out["confidences at the ends of lines"] += 1
            values.pop()
        if len(values) != 4 and (keypoints or len(values) < 6 or len(values) % 2):
            more = f", perhaps with {keypoints} of its keypoints" * bool(keypoints)
            more = more or ", or an x and y for each of 3 or more points"
            raise SourceError(f"{where} must have a class with 4 numbers of a box{more}, got {len(values)} numbers.")
        annotation = _annotate(int(category), values, size_hw)
        if annotation is None:
            raise SourceError(f"{where} must have coordinates of 0..1, shares of the image's sides.")
        row = category, np.array(values, np.float32).tobytes()
        left_out["lines that are twice in a file of labels"] += row in found
        found[row] = annotation
    return list(found.values())


def _annotate(category: int, values: Sequence[float], size_hw: tuple[int, int]) -> dict[str, Any] | None:
    """Convert a label line to a COCO annotation; None if its box is not in the image. A box gives no segmentation."""
    box, (height, width) = values, size_hw
    if len(values) > 4:
        points = np.reshape(values, (-1, 2))
        (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        box = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
    x, y, w, h = box
    if not (all(-_EDGE <= each <= 1 + _EDGE for each in box) and w >= 0 and h >= 0):
        return None
    bbox = [(x - w / 2) * width, (y - h / 2) * height, w * width, h * height]
    entry = {"category_id": category, "bbox": bbox, "area": bbox[2] * bbox[3], "iscrowd": 0}
    if len(values) > 4:
        outline = points * (width, height)
        entry |= {"area": cv2.contourArea(outline.astype(np.float32)), "segmentation": [outline.ravel().tolist()]}
    return entry


def _measure(path: Path) -> tuple[int, int] | None:
    """(height, width) of an image file, upright; None if its header has none."""
    data = read_file(path)
    size = stated_size_hw(data)
    return (size[1], size[0]) if size is not None and stated_orientation(data) >= 5 else size
