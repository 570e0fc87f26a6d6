"""Convert detections to JSON types: `Detections.as_dict`, COCO results and COCO annotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from maskjet.checks import check_choice, shown
from maskjet.detections.fields import check_finite, masks_of, names_of, to_floats, to_text, to_whole, tracks_of
from maskjet.errors import InputError, translate_errors
from maskjet.masks import coco_rle

CocoKind = Literal["segm", "bbox"]
"""Kind of COCO results: "segm" for masks, "bbox" for boxes."""


def as_dict(found: Any, *, rotated_boxes: bool = False) -> dict[str, Any]:
    """`Detections` as JSON types; see `Detections.as_dict`."""
    check_finite(found)
    columns = found.class_id.tolist(), names_of(found), found.confidence.tolist(), found.xyxy.tolist()
    entries: list[dict[str, Any]] = [
        {"class_id": class_id, "class_name": name, "confidence": confidence, "xyxy": box}
        for class_id, name, confidence, box in zip(*columns, strict=True)
    ]
    for name, values in tracks_of(found).items():
        for entry, value in zip(entries, values.tolist(), strict=True):
            entry[name] = value
    for entry, corners in zip(entries, found.rotated_boxes().tolist() if rotated_boxes else [], strict=False):
        entry["rotated_box"] = corners
    for entry, rle in zip(entries, found.rle or [], strict=False):
        entry["rle"] = coco_rle.to_json(rle)
    return {"size": list(found.image_size), "has_masks": found.rle is not None, "detections": entries}


def read_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Detections` by name, from the output of `as_dict`; see `Detections.from_dict`."""
    found = fields.get("detections") if isinstance(fields, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        raise InputError("fields must be what Detections.as_dict returns, with a list of dicts as 'detections'.")
    with translate_errors(InputError, "fields must be what Detections.as_dict returns"):
        has_rle = fields["has_masks"] and not any("polygons" in entry for entry in found)
        if not isinstance(size := fields["size"], list | tuple) or len(size) != 2:
            raise InputError(f"size must be [height, width] in pixels, got {shown(size)}.")
        height, width = (to_whole("size", side, bits=32, least=0) for side in size)
        class_id = [to_whole("class_id", entry["class_id"], bits=32) for entry in found]
        tracks: dict[str, NDArray[Any]] = {
            name: np.array([to_whole(name, entry[name]) for entry in found], np.int64)
            for name in ("track_id", "track_class_id", "moved")
            if found and name in found[0]
        }
        if found and "filled" in found[0]:
            tracks["filled"] = np.array([entry["filled"] for entry in found])
        return dict(
            image_size=(height, width),
            xyxy=to_floats("xyxy", [entry["xyxy"] for entry in found], (4,)),
            confidence=to_floats("confidence", [entry["confidence"] for entry in found], ()),
            class_id=np.array(class_id, dtype=np.int32),
            rle=[coco_rle.from_json(entry["rle"]) for entry in found] if has_rle else None,
            class_names={
                n: to_text("class_name", entry["class_name"]) for n, entry in zip(class_id, found, strict=True)
            },
            **tracks,
        )


def to_coco(
    found: Any, image_id: int, category_ids: Mapping[int, int] | None = None, kind: CocoKind | None = None
) -> list[dict[str, Any]]:
    """Entries of a COCO results file; see `Detections.to_coco`."""
    kind = kind or ("bbox" if found.rle is None else "segm")
    check_choice("kind", kind, get_args(CocoKind))
    check_finite(found)
    image_id, classes = to_whole("image_id", image_id), found.class_id.tolist()
    missing = [] if category_ids is None else sorted(set(classes) - set(category_ids))
    if missing:
        raise InputError(f"category_ids must have every class that was found, got none for {missing}.")
    shapes: list[dict[str, Any]]
    if kind == "segm":
        shapes = [{"segmentation": coco_rle.to_json(rle)} for rle in masks_of(found, "to_coco")]
    else:
        shapes = [{"bbox": [x1, y1, x2 - x1, y2 - y1]} for x1, y1, x2, y2 in found.xyxy.tolist()]
    ids = classes if category_ids is None else [to_whole("category_ids", category_ids[each]) for each in classes]
    results = [
        {"image_id": image_id, "category_id": category_id, **shape, "score": score}
        for category_id, shape, score in zip(ids, shapes, found.confidence.tolist(), strict=True)
    ]
    for result, track in zip(results, [] if found.track_id is None else found.track_id.tolist(), strict=False):
        result["track_id"] = track
    return results


def coco_annotations(found: Any, image_id: int, category_ids: Mapping[int, int]) -> list[dict[str, Any]]:
    """Annotations of a COCO data set, with boxes, areas and masks; arguments are those of `Detections.to_coco`."""
    boxes, shapes = found.to_coco(image_id, category_ids, kind="bbox"), found.to_coco(image_id, category_ids)
    areas = found.area.tolist()
    return [{"area": area, "iscrowd": 0, **box, **shape} for area, box, shape in zip(areas, boxes, shapes, strict=True)]
