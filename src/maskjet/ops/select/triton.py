"""select on an NVIDIA GPU: one launch, one program per image, after copies of strided inputs.

A program reads the logits once and keeps scores above the lowest threshold as 64-bit keys: the score, then the flat
index. So no two keys are equal, and their order is rfdetr's. If more are left than `num_select` or `max_detections`,
the smallest key to keep is found by bisecting its bits. The last few are ranked by counting, for each, the keys above
it. Any number of queries and classes is possible, and any share of them may pass.
"""

from __future__ import annotations

import torch

from maskjet.ops.gpu import Launcher, on_device
from maskjet.ops.select.kernels import select_kernel
from maskjet.ops.selection import Selection, SizeTable

_TILE = 2048
_RANKED = 64

_launch = Launcher(select_kernel, num_warps=8)


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
) -> Selection:
    """Choose detections from logits [B, Q, C] and boxes [B, Q, 4]; see `ops.select`."""
    selection = out or Selection.empty(len(logits), max_detections, logits.device)
    batch, queries, classes = logits.shape
    keys = torch.empty((batch, queries * classes), dtype=torch.int64, device=logits.device)
    with on_device(logits.device):
        _launch(
            (batch, 1, 1),
            (logits.device, logits.dtype, boxes.dtype),
            logits.contiguous(),
            boxes.contiguous(),
            sizes.on_device,
            sizes.canvases_on_device,
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
            selection.query.shape[1],
            sizes.on_device.stride(0),
            sizes.canvases_on_device.stride(0),
            TILE=_TILE,
            RANKED=_RANKED,
        )
    return selection
