"""Read COCO data sets and results, validate each entry, and copy them for an evaluator.

Any invalid file or entry raises one of maskjet's exceptions: sizes, numbers and outlines are checked before the
evaluator's compiled code sees them.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maskjet import limits
from maskjet.errors import InputError, SourceError, explain, translate_errors
from maskjet.masks import coco_rle

Entry = Mapping[str, Any]
"""A JSON object of a COCO file: an entry of one of its lists, or the whole data set."""
_LARGEST = 1e12  # largest coordinate or area, so that their products stay finite
_LONGEST_OUTLINE = 2**22  # pixels along one polygon's edges; the evaluator takes five points of 16 bytes for each


def _is_whole(value: Any, least: int = -(2**63), end: int = 2**63) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and least <= int(value) < end


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and bool(abs(value) <= _LARGEST)  # type: ignore[operator]  # NaN is not


def _is_box(value: object) -> bool:
    return isinstance(value, Sequence | np.ndarray) and len(value) == 4 and all(map(_is_number, value))


class _Type(NamedTuple):
    name: str
    holds: Callable[[object], bool]
    cast: Callable[[Any], Any]


_WHOLE = _Type("a whole number", _is_whole, int)
_SIDE = _Type("a whole number of 1 or more", partial(_is_whole, least=1, end=2**31), int)
_NUMBER = _Type("a finite number", _is_number, float)
_BOX = _Type("four finite numbers", _is_box, lambda box: [float(side) for side in box])
_RESULT_FIELDS = {"image_id": _WHOLE, "category_id": _WHOLE, "score": _NUMBER}
_IDS = {"image_id": "images", "category_id": "categories"}
_BOXES = {"bbox": _BOX}  # results of masks have no boxes
_TRUTH_FIELDS = {
    "images": {"id": _WHOLE, "height": _SIDE, "width": _SIDE},
    "categories": {"id": _WHOLE},
    "annotations": {"image_id": _WHOLE, "category_id": _WHOLE, "bbox": _BOX, "area": _NUMBER},
}


class ResultsFile(NamedTuple):
    """The content of a COCO results file."""

    entries: list[dict[str, Any]]
    """The detections."""
    categories: dict[int, str]
    """Category names by id; empty if the file is a plain list of detections."""


def read_json(path: Path) -> Any:
    """Read a JSON file; raises SourceError if that fails, also if it is nested too deeply for Python's parser."""
    with translate_errors(SourceError, f"{str(path)!r} must be JSON"):
        try:
            limits.check("json_bytes", path.stat().st_size, f"{str(path)!r} has", SourceError)
            return json.loads(path.read_bytes())
        except OSError as error:
            raise SourceError(f"{str(path)!r} must be a readable file: {explain(error)}.") from error


def read_results_file(path: Path) -> ResultsFile:
    """Read a COCO results file: a list of detections, of boxes or of masks, or an object whose "annotations" are one.

    Raises:
        SourceError: The file is missing, can't be read or is not JSON.
        InputError: It holds no such list, or an entry is invalid.
    """
    content = read_json(path)
    is_object = isinstance(content, dict)
    entries: Any = content.get("annotations") if is_object else content
    _check_result_entries(entries, repr(str(path)))
    listed = content.get("categories") if is_object else None
    categories = {}
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and _is_whole(entry.get("id")) and isinstance(entry.get("name"), str):
            categories[entry["id"]] = entry["name"]
    return ResultsFile(list(entries), categories)


def check_truth(truth: Entry, where: str = "truth") -> None:
    """Check that all entries of a data set have valid fields; `check_masks` checks the masks.

    Raises:
        InputError: One has not, or two images or two categories share an id.
    """
    for name, fields in _TRUTH_FIELDS.items():
        if not isinstance(truth, Mapping) or name not in truth:
            raise InputError(f"{where} must be a COCO data set with {name!r}, got {reprlib.repr(truth)}.")
        _check_entries(truth[name], fields, f"{name!r} in {where}")
        if name == "annotations":
            continue
        if not truth[name]:
            raise InputError(f"{where} must have at least one entry in {name!r}, got none.")
        doubles = [number for number, times in Counter(entry["id"] for entry in truth[name]).items() if times > 1]
        if doubles:
            raise InputError(f"{name!r} in {where} must have different ids, got {doubles[0]} more than once.")
    _check_ids(truth["annotations"], truth, f"'annotations' in {where}")
    for number, entry in enumerate(truth["annotations"]):
        crowd = entry.get("iscrowd")
        if crowd is not None and not (isinstance(crowd, Integral) and int(crowd) in (0, 1)):
            got = reprlib.repr(crowd)
            raise InputError(f"entry {number} of 'annotations' in {where} must have 0 or 1 as 'iscrowd', got {got}.")


def check_results(truth: Entry, results: Mapping[str, Sequence[Entry]]) -> None:
    """Check results by variant against a truth already checked; `check_masks` checks the masks.

    Raises:
        InputError: There are no variants, or an entry is invalid.
    """
    if not results:
        raise InputError("results must have at least one variant, got none.")
    for variant, entries in results.items():
        where = f"results[{variant!r}]"
        _check_result_entries(entries, where)
        _check_ids(entries, truth, where)


def check_masks(truth: Entry, results: Mapping[str, Sequence[Entry]]) -> None:
    """Check that every segmentation fits its image; only the truth may have polygons or uncompressed RLE.

    Raises:
        InputError: One does not fit, or an image is larger than `limits.mask_pixels`.
    """
    sizes = {}
    for image in truth["images"]:
        sizes[image["id"]] = [image["height"], image["width"]]
        limits.check("mask_pixels", math.prod(sizes[image["id"]]), f"image {image['id']} of the truth has")
    named = {f"results[{name!r}]": entries for name, entries in results.items()}
    for where, entries in {"'annotations' in truth": truth["annotations"], **named}.items():
        for number, entry in enumerate(entries):
            mask, size = entry["segmentation"], sizes[entry["image_id"]]
            is_right = _is_rle(mask, size) and (where not in named or isinstance(mask["counts"], str | bytes))
            if where not in named and isinstance(mask, list):
                is_right = bool(mask) and all(_is_polygon(line, size) for line in mask)
            if not is_right:
                expected, got = f"an RLE of its image's size {size}", reprlib.repr(mask)
                expected += "" if where in named else ", or polygons of 3 or more points near the image,"
                raise InputError(f"entry {number} of {where} must have {expected} as 'segmentation', got {got}.")


def compare_names(truth: Entry, variant: str, categories: Mapping[int, str]) -> list[str]:
    """Describe, in a sentence, category ids whose names differ between a variant's results and the truth."""
    titles = {entry["id"]: entry["name"] for entry in truth["categories"] if isinstance(entry.get("name"), str)}
    others = [
        f"{number} is {name!r}, in the truth {titles[number]!r}"
        for number, name in sorted(categories.items())
        if number in titles and titles[number] != name
    ]
    if not others:
        return []
    more = f"; and {len(others) - 3} more" if len(others) > 3 else ""
    return [f"results[{variant!r}] has other categories than the truth: {'; '.join(others[:3])}{more}."]


def copy_truth(truth: Entry, kind: str) -> dict[str, list[dict[str, Any]]]:
    """Copy the fields needed to evaluate a kind; ids are replaced by ranks, from 1."""
    copied = {name: [_copy(entry, fields) for entry in truth[name]] for name, fields in _TRUTH_FIELDS.items()}
    for number, (entry, annotation) in enumerate(zip(truth["annotations"], copied["annotations"], strict=True), 1):
        annotation |= {"id": number, "iscrowd": int(entry.get("iscrowd") or 0)}
        if kind == "segm":  # unchecked for other kinds
            annotation["segmentation"] = entry["segmentation"]
    _renumber(truth, copied["annotations"])
    for name in ("images", "categories"):
        copied[name].sort(key=lambda entry: int(entry["id"]))
        for rank, entry in enumerate(copied[name], 1):
            entry |= {"id": rank, "name": str(rank)}
    return copied


def copy_results(truth: Entry, entries: Sequence[Entry], kind: str) -> list[dict[str, Any]]:
    """Copy the fields the evaluator needs, with the ids of `copy_truth`.

    Boxes only for kind "bbox", since they would set the area of masks, too.
    """
    if kind == "bbox":
        copied = [_copy(entry, _RESULT_FIELDS | _BOXES) for entry in entries]
    else:
        copied = [{**_copy(entry, _RESULT_FIELDS), "segmentation": entry["segmentation"]} for entry in entries]
    return _renumber(truth, copied)


def _renumber(truth: Entry, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace ids of images and categories by ranks, from 1, since the evaluator takes no negative ids."""
    for field, name in _IDS.items():
        ranks = {number: rank for rank, number in enumerate(sorted(entry["id"] for entry in truth[name]), 1)}
        for entry in entries:
            entry[field] = ranks[entry[field]]
    return entries


def _copy(entry: Entry, fields: Mapping[str, _Type]) -> dict[str, Any]:
    return {field: kind.cast(entry[field]) for field, kind in fields.items()}


def _check_entries(entries: Any, fields: Mapping[str, _Type], where: str) -> None:
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise InputError(f"{where} must be a list of entries, got {reprlib.repr(entries)}.")
    for number, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise InputError(f"entry {number} of {where} must have fields, got {reprlib.repr(entry)}.")
        for field, kind in fields.items():
            if not kind.holds(entry.get(field)):
                got = reprlib.repr(entry[field]) if field in entry else "nothing"
                raise InputError(f"entry {number} of {where} must have {kind.name} as {field!r}, got {got}.")


def _check_result_entries(entries: Any, where: str) -> None:
    """Check entries of results: each has a box or a mask, which `check_masks` checks."""
    _check_entries(entries, _RESULT_FIELDS, where)
    boxed = [entry for entry in entries if "bbox" in entry or entry.get("segmentation") is None]
    _check_entries(boxed, _BOXES, where)


def _check_ids(entries: Sequence[Entry], truth: Entry, where: str) -> None:
    for field, name in _IDS.items():
        unknown = {entry[field] for entry in entries} - {entry["id"] for entry in truth[name]}
        if unknown:
            raise InputError(f"{where} must be of the truth's {name}, got {field} {reprlib.repr(sorted(unknown))}.")


def _is_rle(value: Any, size: list[int]) -> bool:
    try:
        coco_rle.area(value)
        return bool(list(value["size"]) == size)
    except Exception:  # values of any type may raise any error
        return False


def _is_polygon(line: object, size: Sequence[int]) -> bool:
    """Whether this is a polygon of bounded length that reaches at most one image size beyond the image's border.

    Two points are none: pycocotools takes a list of four numbers for a box.
    """
    if not isinstance(line, list) or len(line) < 6 or len(line) % 2 or not all(map(_is_number, line)):
        return False
    height, width = size
    xs, ys = line[0::2], line[1::2]
    is_near = -width <= min(xs) and max(xs) <= 2 * width and -height <= min(ys) and max(ys) <= 2 * height
    edges = pairwise(zip([*xs, xs[0]], [*ys, ys[0]], strict=True))
    length = sum(max(abs(x2 - x1), abs(y2 - y1)) for (x1, y1), (x2, y2) in edges)
    return is_near and bool(length <= _LONGEST_OUTLINE)
