"""The definition of encode_masks: paste, then encode."""

from __future__ import annotations

import torch

from maskjet import coco_rle
from maskjet.ops.paste_masks.reference import paste_masks


def encode_masks(
    mask_logits: torch.Tensor, query: list[torch.Tensor], image_sizes: list[tuple[int, int]]
) -> list[list[bytes]]:
    """Encode masks of [B, Q, h, w]; see `ops.encode_masks`."""
    encoded = []
    for image, (rows, size) in enumerate(zip(query, image_sizes, strict=True)):
        distinct, place = torch.unique(rows, return_inverse=True)
        ((masks, _),) = paste_masks(mask_logits[image : image + 1], [distinct], [size])
        strings = [rle["counts"] for rle in coco_rle.encode(masks.cpu().numpy())]
        encoded.append([strings[i] for i in place.tolist()])
    return encoded
