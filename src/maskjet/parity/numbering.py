"""Checks that results and truth number images and categories alike; if not, the average precision is wrongly near 0."""

from __future__ import annotations

import reprlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from maskjet import coco_rle
from maskjet.parity.coco_files import Entry
from maskjet.parity.pair import box_iou

_MOST = 500  # detections of a variant, by descending score, whose categories are compared with the truth's
_FEWEST = 5  # detections with the same shift of category ids before it is reported
_IOU = 0.5


def find_mismatches(truth: Entry, results: Mapping[str, Sequence[Entry]]) -> list[str]:
    """Describe how the image and category ids of results, by variant, fail to match the truth's, in sentences."""
    annotations = truth["annotations"]
    if not annotations:
        return []
    notes = []
    shown, used = ({entry[field] for entry in annotations} for field in ("image_id", "category_id"))
    for variant, entries in results.items():
        where = f"results[{variant!r}]"
        seen = {entry["image_id"] for entry in entries} & shown
        if entries and not seen:
            notes.append(f"{where} has no image id in common with the truth's annotations.")
        elif entries and 2 * len(seen) < len(shown):
            notes.append(f"{where} has detections on {len(seen)} of the truth's {len(shown)} images with annotations.")
        never = [entry["category_id"] for entry in entries if entry["category_id"] not in used]
        if 2 * len(never) > len(entries):
            named = reprlib.repr(sorted(set(never)))
            notes.append(f"{where} has mostly category ids that are never in the truth's annotations: {named}.")
        shift = _find_shift(annotations, entries)
        if shift:
            numbering = f"category ids {abs(shift)} {'below' if shift > 0 else 'above'} the truth's"
            notes.append(f"{where} seems to have {numbering} for the same things: one may number from 0, one from 1.")
    return notes


def compare_names(truth: Entry, variant: str, categories: Mapping[int, str]) -> list[str]:
    """Describe category ids that have another name in a variant's results than in the truth, in a sentence."""
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


def _find_shift(annotations: Sequence[Entry], entries: Sequence[Entry]) -> int:
    """The shift of the results' category ids, 1 or -1, that makes most agree with the truth's; 0 if neither does."""
    placed: dict[Any, list[Entry]] = defaultdict(list)
    for annotation in annotations:
        placed[annotation["image_id"]].append(annotation)
    agreeing = Counter({0: 0, 1: 0, -1: 0})
    for entry in sorted(entries, key=lambda entry: -entry["score"])[:_MOST]:
        there = placed.get(entry["image_id"])
        if not there:
            continue
        overlap = box_iou(_corners([entry]), _corners(there))[0]
        best = int(overlap.argmax())
        if overlap[best] >= _IOU:
            shift = int(there[best]["category_id"]) - int(entry["category_id"])
            if shift in agreeing:
                agreeing[shift] += 1
    best_shift, times = agreeing.most_common(1)[0]
    return best_shift if times >= _FEWEST and times > 2 * agreeing[0] else 0


def _corners(entries: Sequence[Entry]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The entries' boxes as xyxy, float32 [n, 4]; those of their masks where they have none."""
    return np.array(list(map(_corners_of, entries)), np.float32)


def _corners_of(entry: Entry) -> tuple[float, ...]:
    if "bbox" not in entry:
        return coco_rle.to_xyxy(entry["segmentation"])
    x, y, width, height = entry["bbox"]
    return x, y, x + width, y + height
