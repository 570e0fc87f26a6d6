"""The definition of select, in plain PyTorch, one image after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch

from maskjet.ops.canvas import Canvas
from maskjet.ops.selection import Selection, SizeTable

Rank = Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor]
"""Takes an image's scores [Q × C], a count and thresholds [C]; returns up to count flat indices, best first."""


def rank_all(scores: torch.Tensor, count: int, _thresholds: torch.Tensor) -> torch.Tensor:
    """Rank pairs by their scores, ties by their indices, NaN before all."""
    return scores.argsort(descending=True, stable=True)[:count]


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
    rank: Rank = rank_all,
) -> Selection:
    """Choose detections from logits [B, Q, C] and boxes [B, Q, 4]; see `ops.select`. Pairs are ranked by `rank`."""
    batch, queries, classes = logits.shape
    scores = logits.float().sigmoid().reshape(batch, queries * classes)
    selection = out or Selection.empty(batch, max_detections, logits.device)
    for image, (size, canvas) in enumerate(zip(sizes.hw, sizes.canvases, strict=True)):
        flat = rank(scores[image], num_select, thresholds)
        score, label = scores[image, flat], flat % classes
        flat = flat[(score > thresholds[label]) & (class_map[label] >= 0)][:max_detections]
        query, label = flat // classes, flat % classes
        count = len(flat)
        selection.count[image] = count
        selection.query[image, :count] = query.int()
        selection.class_id[image, :count] = class_map[label]
        selection.confidence[image, :count] = scores[image, flat]
        selection.xyxy[image, :count] = to_pixels(boxes[image, query], size, canvas)
    return selection


def to_pixels(boxes_cxcywh: torch.Tensor, size_hw: tuple[int, int], canvas: Canvas) -> torch.Tensor:
    """Convert cxcywh boxes [n, 4], 0..1 of the canvas, to float32 xyxy in pixels of the image, clamped to it.

    Negative sizes count as 0; NaN coordinates become 0.
    """
    centre, size = boxes_cxcywh.float().chunk(2, dim=-1)
    half = 0.5 * size.clamp(min=0)
    corners = torch.cat((centre - half, centre + half), dim=-1)
    scale = corners.new_tensor((canvas.width, canvas.height) * 2)
    xyxy = corners * scale + corners.new_tensor((canvas.left, canvas.top) * 2)
    return xyxy.where(xyxy > 0, 0).minimum(corners.new_tensor((size_hw[1], size_hw[0]) * 2))
