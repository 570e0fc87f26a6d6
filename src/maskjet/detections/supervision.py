"""`supervision.Detections` of `Detections`, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from maskjet.detections.fields import to_floats, to_whole
from maskjet.errors import InputError
from maskjet.host.extras import require
from maskjet.masks import coco_rle


def make_supervision(found: Any, masks: Any) -> Any:
    """`supervision.Detections` of `Detections`; see `Detections.to_supervision`."""
    if masks not in ("dense", "compact", False):
        raise InputError(f"masks must be 'dense', 'compact' or False, got {masks!r}.")
    library = require("supervision", extra="supervision", purpose="to_supervision()")
    mask = None
    if masks and found.rle is not None:
        mask = found.masks() if masks == "dense" else _to_compact(found.rle, found.image_size)
    return library.Detections(
        xyxy=found.xyxy.copy(),
        mask=mask,
        confidence=found.confidence.copy(),
        class_id=found.class_id.astype(int),
        tracker_id=None if found.track_id is None else found.track_id.astype(int),
        data={"class_name": found.class_name},
    )


def read_fields(found: Any, image_size: tuple[int, int]) -> dict[str, Any]:
    """Fields of `Detections` by name, from supervision's type; see `Detections.from_supervision`."""
    if not all(hasattr(found, name) for name in ("xyxy", "mask", "confidence", "class_id", "tracker_id", "data")):
        raise InputError(f"found must be supervision.Detections, got {type(found).__name__}.")
    count, ids = len(found), found.tracker_id
    classes = [0] * count if found.class_id is None else found.class_id
    class_id = [to_whole("class_id", each, bits=32) for each in classes]
    names = map(str, found.data.get("class_name", ()))
    return {
        "image_size": image_size,
        "xyxy": to_floats("xyxy", list(found.xyxy), (4,)),
        "confidence": to_floats("confidence", [1.0] * count if found.confidence is None else [*found.confidence], ()),
        "class_id": np.array(class_id, np.int32),
        "rle": None if found.mask is None else [coco_rle.encode(mask)[0] for mask in found.mask],
        "class_names": dict(zip(class_id, names, strict=False)),
        "track_id": None if ids is None else np.array([to_whole("tracker_id", each) for each in ids], np.int64),
    }


def _to_compact(rles: Sequence[dict[str, Any]], size_hw: tuple[int, int]) -> Any:
    """Build a `CompactMask` from each mask's tight box, since masks may exceed their detection's box.

    Its `from_coco_rle` makes the same one in Python's loops, which take 13 to 18 times as long, and longer than dense
    masks (benchmarks.supervision_masks).
    """
    compact = require("supervision.detection.compact_mask", extra="supervision", purpose="to_supervision()").CompactMask
    crops = [
        (left, top, crop if crop.size else np.zeros((1, 1), np.uint8))
        for left, top, crop in map(coco_rle.decode_crop, rles)
    ]
    counts = [coco_rle.count_runs(crop).astype(np.int32) for _, _, crop in crops]
    sides = np.array([crop.shape for _, _, crop in crops], np.int32).reshape(-1, 2)
    corners = np.array([corner for *corner, _ in crops], np.int32).reshape(-1, 2)
    return compact(counts, sides, corners, size_hw)
