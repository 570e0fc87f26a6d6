"""nms on an NVIDIA GPU: two launches for all images, after copies of strided arguments.

The first finds which boxes overlap, one bit per pair. The second visits the boxes in order, 32 at a time: it decides
among the 32 by their own bits, then marks all later boxes that the kept ones suppress. It ends when enough boxes are
kept. A chain of boxes, each overlapping the next, takes no longer than other inputs.
"""

from __future__ import annotations

import torch

from maskjet.ops.gpu import Launcher, on_device
from maskjet.ops.nms.kernels import choose_kernel, find_overlaps_kernel
from maskjet.ops.nms.reference import Kept

_ROWS = 64
_BITS = 32
_WORDS = 32

# Fused multiply-adds would change which boxes overlap, compared with the CPU.
_find_overlaps = Launcher(find_overlaps_kernel, num_warps=4, enable_fp_fusion=False)
_choose = Launcher(choose_kernel, num_warps=4, enable_fp_fusion=False)


def nms(boxes: torch.Tensor, count: torch.Tensor, groups: torch.Tensor, *, threshold: float, max_output: int) -> Kept:
    """Choose which of boxes [B, N, 4] stay; see `ops.nms`."""
    batch, most = groups.shape
    kept = Kept(
        torch.empty(batch, dtype=torch.int32, device=boxes.device),
        torch.empty((batch, max_output), dtype=torch.int32, device=boxes.device),
    )
    words = -(-most // _BITS)
    overlaps = torch.empty((batch, most, words), dtype=torch.int32, device=boxes.device)
    removed = torch.empty((batch, words), dtype=torch.int32, device=boxes.device)
    boxes, groups, count = boxes.contiguous(), groups.contiguous(), count.contiguous()
    with on_device(boxes.device):
        if most and batch:
            grid = (words, -(-most // _ROWS), batch)
            _find_overlaps(
                grid, boxes.device, boxes, groups, count, overlaps, most, words, threshold, ROWS=_ROWS, BITS=_BITS
            )
        if batch:
            _choose(
                (batch, 1, 1),
                boxes.device,
                overlaps,
                count,
                removed,
                kept.count,
                kept.index,
                most,
                words,
                max_output,
                BITS=_BITS,
                WORDS=_WORDS,
            )
    return kept
