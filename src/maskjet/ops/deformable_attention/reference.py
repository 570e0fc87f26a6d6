"""The definition of deformable_attention, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def deformable_attention(
    projections: torch.Tensor, boxes: torch.Tensor, values: torch.Tensor, *, out: torch.Tensor
) -> None:
    """Sample values at points around boxes, and average them by the softmax of the points' logits, for each head.

    A point is centre + offset × size × 0.5 / points, as in Deformable DETR with one level; sampling is bilinear, with
    zeros outside the image.

    Args:
        projections: float16 or bfloat16 [B, Q, P, 3, H], contiguous: for each of P points and H heads, the
            offsets along x and y and the logit. H is a power of two.
        boxes: float32 [B, Q, 4] cxcywh, 0..1 of the image, contiguous.
        values: Of the projections' type, [B, h, w, C]; pixels may be evenly strided, channels not. C / H is a power of
            two.
        out: Of the same type, [B, Q, C], contiguous.
    """
    batch, queries, points, _, heads = projections.shape
    if not out.numel():
        return
    offsets, logits = projections[:, :, :, :2].float(), projections[:, :, :, 2].float()
    reach = boxes[:, :, None, 2:, None] * (0.5 / points)
    where = boxes[:, :, None, :2, None] + offsets * reach  # [B, Q, points, xy, heads]
    where = (2 * where - 1).permute(0, 4, 1, 2, 3).flatten(0, 1)
    height, width = values.shape[1:3]
    images = values.float().view(batch, height, width, heads, -1).permute(0, 3, 4, 1, 2).flatten(0, 1)
    sampled = F.grid_sample(images, where, mode="bilinear", padding_mode="zeros", align_corners=False)
    weights = logits.softmax(dim=2).permute(0, 3, 1, 2).flatten(0, 1)[:, None]  # [B × heads, 1, Q, points]
    context = (sampled * weights).sum(dim=-1).view(batch, -1, queries)
    out.copy_(context.transpose(1, 2))
