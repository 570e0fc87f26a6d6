"""select on an NVIDIA GPU: one launch, one program per image, nothing waits for the host.

A program reads the logits once and keeps those above the lowest threshold as 64-bit keys, score first, then flat
index, so that no two are equal and their order is rfdetr's. Where more are left than may be looked at, or returned, the
smallest key to keep is found by bisection of its bits. The few that are left are ranked by counting, for each, those
above it. Any number of queries and classes, any part of them passing.
"""

from __future__ import annotations

import torch

from maskjet.ops.gpu import Launcher, on_device_of, sizes_table
from maskjet.ops.select.kernels import select_kernel
from maskjet.ops.selection import Selection

_TILE = 2048
_RANKED = 64

_launch = Launcher(select_kernel, num_warps=8, enable_fp_fusion=True)


def select(
    logits: torch.Tensor,
    boxes: torch.Tensor,
    image_sizes: list[tuple[int, int]],
    *,
    thresholds: torch.Tensor,
    class_map: torch.Tensor,
    max_detections: int,
    num_select: int,
    round_boxes: bool,
) -> Selection:
    """Choose detections from logits [B, Q, C] and boxes [B, Q, 4]; see `ops.select`."""
    batch, queries, classes = logits.shape
    device = logits.device
    selection = Selection.empty(batch, max_detections, device)
    keys = torch.empty((batch, queries * classes), dtype=torch.int64, device=device)
    with on_device_of(logits):
        _launch(
            (batch, 1, 1),
            (device, logits.dtype, boxes.dtype),
            logits.contiguous(),
            boxes.contiguous(),
            sizes_table(image_sizes, device),
            thresholds,
            class_map,
            keys,
            selection.count,
            selection.query,
            selection.class_id,
            selection.confidence,
            selection.xyxy,
            queries,
            classes,
            num_select,
            max_detections,
            IS_ROUNDED=round_boxes,
            TILE=_TILE,
            RANKED=_RANKED,
        )
    return selection
