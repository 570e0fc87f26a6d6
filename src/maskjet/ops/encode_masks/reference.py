"""The definition of encode_masks: paste, then encode."""

from __future__ import annotations

import torch

from maskjet import coco_rle
from maskjet.ops.paste_masks.reference import paste_masks
from maskjet.ops.selection import MaskQueries


def encode_masks(
    mask_logits: torch.Tensor, queries: MaskQueries, image_sizes: list[tuple[int, int]]
) -> list[list[bytes]]:
    """Encode masks of [B, Q, h, w]; see `ops.encode_masks`."""
    return [encode_dense(masks) for masks, _ in paste_masks(mask_logits, queries, image_sizes)]


def encode_dense(masks: torch.Tensor) -> list[bytes]:
    """Counts strings of full-size masks, bool or uint8 [n, H, W]."""
    return [rle["counts"] for rle in coco_rle.encode(masks.cpu().numpy())]
