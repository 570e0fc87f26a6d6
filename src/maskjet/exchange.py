"""Detections as other packages have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet import coco_rle
from maskjet.extras import require

_NUDGE = 1e-6  # pixels: FiftyOne cuts off fractions, and a share of 1 may be just below its pixel


def make_fiftyone(
    size_hw: tuple[int, int],
    xyxy: NDArray[np.float32],
    names: Sequence[str],
    scores: Sequence[float],
    rles: Sequence[coco_rle.RLE] | None,
    tracks: Sequence[int] | None,
) -> Any:
    """`fiftyone.Detections` of n detections' fields; see `Detections.to_fiftyone`."""
    library = require("fiftyone", extra=None, purpose="to_fiftyone()")
    height, width = size_hw
    found = []
    for i, (x1, y1, x2, y2) in enumerate(xyxy.tolist()):
        about: dict[str, Any] = {} if tracks is None else {"index": tracks[i]}
        if rles is not None:
            left, top, crop = coco_rle.decode_crop(rles[i])
            if crop.size:
                x1, y1 = left + _NUDGE, top + _NUDGE
                x2, y2 = x1 + crop.shape[1], y1 + crop.shape[0]
                about["mask"] = crop.view(np.bool_)
        box = [x1 / width, y1 / height, (x2 - x1) / width, (y2 - y1) / height]
        found.append(library.Detection(label=names[i], confidence=scores[i], bounding_box=box, **about))
    return library.Detections(detections=found)
