"""`fiftyone.Detections` of `Detections`."""

from __future__ import annotations

from typing import Any

import numpy as np

from maskjet.host.extras import require
from maskjet.masks import coco_rle

_NUDGE = 1e-6  # pixels: FiftyOne truncates, and a relative coordinate may lie just below its pixel


def make_fiftyone(found: Any) -> Any:
    """`fiftyone.Detections` of `Detections`; see `Detections.to_fiftyone`."""
    library = require("fiftyone", extra=None, purpose="to_fiftyone()")
    (height, width), names, made = found.image_size, found.class_name.tolist(), []
    for i, (x1, y1, x2, y2) in enumerate(found.xyxy.tolist()):
        about: dict[str, Any] = {} if found.track_id is None else {"index": int(found.track_id[i])}
        if found.rle is not None:
            left, top, crop = coco_rle.decode_crop(found.rle[i])
            if crop.size:
                x1, y1 = left + _NUDGE, top + _NUDGE
                x2, y2 = x1 + crop.shape[1], y1 + crop.shape[0]
                about["mask"] = crop.view(np.bool_)
        box = [x1 / width, y1 / height, (x2 - x1) / width, (y2 - y1) / height]
        score = float(found.confidence[i])
        made.append(library.Detection(label=names[i], confidence=score, bounding_box=box, **about))
    return library.Detections(detections=made)
