"""The definition of select, in plain PyTorch, one image after the other."""

from __future__ import annotations

import torch

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
    scores = logits.float().sigmoid().reshape(batch, queries * classes)
    ranked = scores.argsort(dim=1, descending=True, stable=True)[:, :num_select]
    selection = out or Selection.empty(batch, max_detections, logits.device)
    for image, (height, width) in enumerate(sizes.hw):
        flat = ranked[image]
        score, label = scores[image, flat], flat % classes
        flat = flat[(score > thresholds[label]) & (class_map[label] >= 0)][:max_detections]
        query, label = flat // classes, flat % classes
        count = len(flat)
        selection.count[image] = count
        selection.query[image, :count] = query.int()
        selection.class_id[image, :count] = class_map[label]
        selection.confidence[image, :count] = scores[image, flat]
        xyxy = to_pixels(boxes[image, query], height, width)
        selection.xyxy[image, :count] = xyxy.round() if round_boxes else xyxy
    return selection


def to_pixels(boxes_cxcywh: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Convert cxcywh boxes [n, 4], 0..1 of the image, to float32 xyxy in pixels, clamped to the image.

    Negative sizes count as 0; NaN coordinates become 0.
    """
    centre, size = boxes_cxcywh.float().chunk(2, dim=-1)
    half = 0.5 * size.clamp(min=0)
    scale = centre.new_tensor([width, height, width, height])
    xyxy = torch.cat((centre - half, centre + half), dim=-1) * scale
    return xyxy.where(xyxy > 0, 0).minimum(scale)
