"""select on a CPU: threshold first, then rank the few that are left.

The reference sorts all Q × C scores (9,100 for RF-DETR-Seg Nano) to keep some tens.
"""

from __future__ import annotations

import numpy as np
import torch

from maskjet.ops.select.reference import to_pixels
from maskjet.ops.selection import Selection, SizeTable


def select(
    logits: torch.Tensor,
    boxes: torch.Tensor,
    sizes: SizeTable,
    out: Selection | None = None,
    *,
    thresholds: torch.Tensor,
    class_map: torch.Tensor,
    max_detections: int,
    num_select: int,
    round_boxes: bool,
) -> Selection:
    """Choose detections from logits [B, Q, C] and boxes [B, Q, 4]; see `ops.select`."""
    batch, queries, classes = logits.shape
    scores = logits.float().sigmoid().reshape(batch, queries * classes).numpy()
    per_class = thresholds.numpy()
    lowest = np.fmin.reduce(per_class, initial=np.inf)  # ignoring NaN, which no score exceeds
    mapping = class_map.numpy()
    selection = out or Selection.empty(batch, max_detections, logits.device)
    for image, (size, canvas) in enumerate(zip(sizes.hw, sizes.canvases, strict=True)):
        # Scores above the lowest threshold lead the ranking, except for NaNs, which rank before everything.
        flat = np.flatnonzero(scores[image] > lowest)
        flat = flat[np.argsort(-scores[image, flat], kind="stable")]
        flat = flat[: max(num_select - np.count_nonzero(np.isnan(scores[image])), 0)]
        label = flat % classes
        flat = flat[(scores[image, flat] > per_class[label]) & (mapping[label] >= 0)][:max_detections]
        query, label = torch.from_numpy(flat // classes), flat % classes
        count = len(flat)
        selection.count[image] = count
        selection.query[image, :count] = query
        selection.class_id[image, :count] = torch.from_numpy(mapping[label])
        selection.confidence[image, :count] = torch.from_numpy(scores[image, flat])
        xyxy = to_pixels(boxes[image, query], size, canvas)
        selection.xyxy[image, :count] = xyxy.round() if round_boxes else xyxy
    return selection
