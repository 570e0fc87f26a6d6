"""COCO data sets from outside, read and indexed by hotcoco, which checks the types of all fields.

Checked here is what hotcoco takes without a word: ids that don't fit together, and masks whose size would take memory.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from maskjet import limits
from maskjet.errors import InputError, SourceError, explain, translate_errors
from maskjet.host.extras import require
from maskjet.masks import coco_rle

Entry = Mapping[str, Any]
"""A JSON object of a COCO file: an entry of one of its lists, or the whole data set."""
_LONGEST_OUTLINE = 2**20  # pixels along one polygon's edges; the evaluator takes five points of 16 bytes for each
_FIELDS = {
    "images": ("id", "height", "width"),
    "categories": ("id",),
    "annotations": ("image_id", "category_id", "bbox", "area"),
}
_IDS = {"image_id": "images", "category_id": "categories"}
_WHOLE = {"id", "height", "width", "iscrowd", *_IDS}
_ABSENT: Sequence[Any] = (None, "", [], {}, [[]])


def load_library() -> Any:
    """Import hotcoco, or raise MissingDependencyError."""
    return require("hotcoco", extra="coco", purpose="COCO mAP")


def read_json(path: Path) -> Any:
    """Read a JSON file; raises SourceError if that fails, also if it is nested too deeply for Python's parser."""
    with translate_errors(SourceError, f"{str(path)!r} must be JSON"):
        try:
            limits.check("json_bytes", path.stat().st_size, f"{str(path)!r} has", SourceError)
            return json.loads(path.read_bytes(), parse_constant=_refuse)
        except OSError as error:
            raise SourceError(f"{str(path)!r} must be a readable file: {explain(error)}.") from error


def _refuse(constant: str) -> None:
    if constant != "NaN":  # which pandas writes where there is no value
        raise ValueError(f"numbers must be finite, got {constant}.")


def tidy(found: Entry, where: str) -> tuple[dict[str, Any], Counter[str]]:
    """Read a data set as leniently as other tools do, into one for `check_truth`; also counts what is left out.

    An empty or NaN field is missing. Whole numbers may be text or float; ids that are other text are numbered. A
    missing area is the mask's, or else the box's. Backslashes separate folders. Left out are annotations of images or
    categories that are not listed, and those with polygons of fewer than 3 points alone.

    Raises:
        SourceError: It is not even this.
    """
    with translate_errors(SourceError, f"{where} must be a COCO data set"):
        lists = {name: [_normalise(entry) for entry in found[name]] for name in _FIELDS}
        for image in lists["images"]:
            if isinstance(name := image.get("file_name"), str):
                image["file_name"] = str(PurePosixPath(name.replace("\\", "/")))
        for field, name in _IDS.items():
            if any(isinstance(entry["id"], str) for entry in lists[name]):
                ids = dict.fromkeys(entry["id"] for entry in lists[name])
                numbers = {each: number for number, each in enumerate(ids, 1)}
                for entry in lists[name]:
                    entry["id"] = numbers[entry["id"]]
                for entry in lists["annotations"]:
                    entry[field] = numbers.get(entry[field])
        known = {field: {entry["id"] for entry in lists[name]} for field, name in _IDS.items()}
        kept, left_out = list[dict[str, Any]](), Counter[str]()
        for entry in lists["annotations"]:
            if any(entry[field] not in known[field] for field in _IDS):
                left_out["annotations of images or categories that are not listed"] += 1
                continue
            mask = entry.get("segmentation")
            if isinstance(mask, list):
                entry["segmentation"] = [line for line in mask if not isinstance(line, list) or len(line) >= 6]
                left_out["polygons of fewer than 3 points"] += len(mask) - len(entry["segmentation"])
                if not entry["segmentation"]:
                    left_out["annotations that had no others"] += 1
                    continue
            if "area" not in entry:
                entry["area"] = _measure(entry)
            attributes = entry.get("attributes")  # CVAT's
            left_out["rotations of boxes"] += isinstance(attributes, dict) and bool(attributes.get("rotation"))
            kept.append(entry)
        return {**found, **lists, "annotations": kept}, left_out


def _normalise(entry: Entry) -> dict[str, Any]:
    """An entry without fields that are empty, and with whole numbers as int."""
    present = {field: value for field, value in entry.items() if value not in _ABSENT}
    for field in _WHOLE & present.keys():
        value = present[field]
        is_digits = isinstance(value, str) and re.fullmatch("[0-9]{1,15}", value)
        if is_digits or (isinstance(value, float) and value.is_integer()):
            present[field] = int(value)
    return present


def _measure(entry: Entry) -> float:
    """Area of an annotation in pixels: of its RLE, of its polygons together, or of its box."""
    mask = entry.get("segmentation")
    if isinstance(mask, dict):
        return coco_rle.area(mask)
    if mask is None:
        return math.prod(map(float, entry["bbox"][2:]))
    lines = (np.array(line, np.float64).reshape(-1, 2).T for line in mask)
    with np.errstate(over="raise", invalid="raise"):
        return sum(float(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1))) / 2 for x, y in lines)


def index(truth: Entry, kind: str = "bbox", where: str = "truth") -> Any:
    """Index a data set as a `hotcoco.COCO`, of masks if its kind is "segm"; annotations are numbered from 1.

    Raises:
        InputError: A list or field is missing, or has another type.
    """
    with translate_errors(InputError, f"{where} must be a COCO data set"):
        copied = {name: [_pick(entry, fields) for entry in truth[name]] for name, fields in _FIELDS.items()}
        for number, (entry, annotation) in enumerate(zip(truth["annotations"], copied["annotations"], strict=True), 1):
            annotation |= {"id": number, "iscrowd": entry.get("iscrowd") or 0}
            if kind == "segm":  # unchecked for other kinds
                annotation["segmentation"] = entry["segmentation"]
        for category in copied["categories"]:
            category["name"] = str(category["id"])
        return load_library().COCO(copied)


def load_results(indexed: Any, entries: Sequence[Entry], kind: str) -> Any:
    """Index results of one kind for an indexed data set: boxes beside masks would set the masks' areas, too."""
    fields = ("image_id", "category_id", "score", "bbox" if kind == "bbox" else "segmentation")
    return indexed.load_res([_pick(entry, fields) for entry in entries])


def check_truth(truth: Entry, where: str = "truth") -> None:
    """Check a data set's entries, but not its masks, which `draw_masks` does.

    Raises:
        InputError: A field is invalid, two images or two categories share an id, or an annotation is of neither.
    """
    index(truth, where=where)
    for name in _IDS.values():
        if not truth[name]:
            raise InputError(f"{where} must have at least one entry in {name!r}, got none.")
        doubles = [number for number, times in Counter(entry["id"] for entry in truth[name]).items() if times > 1]
        if doubles:
            raise InputError(f"{name!r} in {where} must have different ids, got {doubles[0]} more than once.")
    for field, name in _IDS.items():
        unknown = {entry[field] for entry in truth["annotations"]} - {entry["id"] for entry in truth[name]}
        if unknown:
            got = reprlib.repr(sorted(unknown))
            raise InputError(f"'annotations' in {where} must be of the truth's {name}, got {field} {got}.")
    for entry in truth["annotations"]:
        numbers = [*entry["bbox"], entry["area"]]
        if not (all(map(math.isfinite, numbers)) and min(numbers[2:]) >= 0):
            expected = "a finite 'bbox' and 'area', with sides and area of at least 0"
            raise InputError(f"{_name(entry)} in {where} must have {expected}, got {numbers[:4]} and {numbers[4]}.")


def _name(entry: Entry) -> str:
    return f"annotation {reprlib.repr(entry.get('id'))} of image {entry['image_id']}"


def draw_masks(truth: Entry) -> dict[str, Any]:
    """Check all segmentations of a data set, then convert each to a compressed RLE, as pycocotools does.

    Raises:
        InputError: One does not fit its image, or an image is larger than `limits.mask_pixels`.
    """
    sizes = {image["id"]: [image["height"], image["width"]] for image in truth["images"]}
    for number, size in sizes.items():
        limits.check("mask_pixels", math.prod(size), f"image {number} of the truth has")
    for entry in truth["annotations"]:
        mask, size = entry["segmentation"], sizes[entry["image_id"]]
        lines = mask if isinstance(mask, list) else []
        try:
            fits = bool(lines) or coco_rle.from_json(mask)["size"] == size
            fits = fits and all(_is_outline(line, size) for line in lines)
        except Exception:  # values of any type may raise any error
            fits = False
        if not fits:
            expected = f"an RLE of its image's size {size}, or polygons of 3 or more points near the image, not long,"
            got = reprlib.repr(mask)
            raise InputError(f"{_name(entry)} must have {expected} as 'segmentation', got {got}.")
    drawn = ({**entry, "segmentation": _draw(entry, sizes[entry["image_id"]])} for entry in truth["annotations"])
    return {**truth, "annotations": [*drawn]}


def _draw(entry: Entry, size: Sequence[int]) -> Any:
    """The segmentation of an annotation, checked already, as a compressed RLE."""
    mask, library = entry["segmentation"], load_library().mask
    if not isinstance(mask, list):
        return coco_rle.from_json(mask)
    rles = library.frPyObjects(mask, *size)
    while len(rles) > 1:  # in pairs: one after another, unions of many take quadratic time
        rles = [library.merge(rles[at : at + 2]) for at in range(0, len(rles), 2)]
    return rles[0]


def _is_outline(line: Sequence[float], size: Sequence[int]) -> bool:
    """Whether a list is a polygon of at least 3 points, not long and near the image; four numbers would be a box."""
    points, most = np.array(line).reshape(-1, 2), np.array(size[::-1])
    is_near = points.dtype.kind in "if" and (-most <= points).all() and (points <= 2 * most).all()
    is_short = abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum() <= _LONGEST_OUTLINE
    return bool(is_near and is_short and len(points) > 2)


def _pick(entry: Entry, fields: Sequence[str]) -> dict[str, Any]:
    return {field: entry[field] for field in fields}
