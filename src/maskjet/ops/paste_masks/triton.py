"""paste_masks on an NVIDIA GPU: per image a fill and a launch, each pixel from its four logits.

Most of an image lies outside a mask, or well inside. A tile whose few logits all have one sign is filled without
computing its pixels; other tiles read four logits per pixel.

The grid covers the largest possible number of masks. Programs past the image's count end at once, so that the host
needn't know the count.
"""

from __future__ import annotations

import numpy as np
import torch
import triton

from maskjet.ops.canvas import Canvas
from maskjet.ops.gpu import Launcher, on_device
from maskjet.ops.paste_masks.kernels import paste_kernel
from maskjet.ops.selection import MaskQueries, SizeTable

_TILE_HW = (8, 128)
_LOGITS_HW = (8, 16)  # most logits under a tile that is tested for one sign

_launch = Launcher(paste_kernel, num_warps=2)


def paste_masks(
    mask_logits: torch.Tensor, queries: MaskQueries, sizes: SizeTable
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Upsample and threshold masks of [B, Q, h, w]; see `ops.paste_masks`."""
    pasted = []
    for image, (rows, size, canvas) in enumerate(zip(queries.rows(), sizes.hw, sizes.canvases, strict=True)):
        masks = torch.empty((len(rows), *size), dtype=torch.uint8, device=mask_logits.device)
        is_inside = torch.empty(len(rows), dtype=torch.bool, device=mask_logits.device)
        launch(mask_logits[image], queries.count[image:], queries.query[image], masks, is_inside, canvas)
        pasted.append((masks, is_inside))
    return pasted


def launch(
    mask_logits: torch.Tensor,
    count: torch.Tensor,
    query: torch.Tensor,
    masks: torch.Tensor,
    is_inside: torch.Tensor,
    canvas: Canvas | None = None,
) -> None:
    """Write one image's masks into given buffers; never waits, and can be captured in a CUDA graph.

    `count`, int32 [1 or more], on the device, says how many masks are written; an index in `query` that is out of range
    is an empty mask. `is_inside` is False past `count`. A canvas of None is the image.
    """
    is_inside.zero_()
    limit, height, width = masks.shape
    if not limit:
        return
    *begins, canvas_width, canvas_height = (canvas or Canvas.of((height, width))).split
    tiles = triton.cdiv(height, _TILE_HW[0]) * triton.cdiv(width, _TILE_HW[1])
    with on_device(masks.device):
        _launch(
            (tiles, limit, 1),
            (masks.device, mask_logits.dtype, masks.data_ptr() % 16),
            mask_logits,
            count,
            query,
            masks,
            is_inside.view(torch.uint8),
            *mask_logits.shape,
            height,
            width,
            *mask_logits.stride(),
            *begins,
            float(np.float32(mask_logits.shape[2]) / np.float32(canvas_width)),
            float(np.float32(mask_logits.shape[1]) / np.float32(canvas_height)),
            TILE_HEIGHT=_TILE_HW[0],
            TILE_WIDTH=_TILE_HW[1],
            LOGITS_HEIGHT=_LOGITS_HW[0],
            LOGITS_WIDTH=_LOGITS_HW[1],
        )
