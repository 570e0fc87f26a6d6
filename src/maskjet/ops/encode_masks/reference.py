"""The definition of encode_masks: paste, then encode."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from maskjet import limits
from maskjet.masks import coco_rle
from maskjet.ops.paste_masks.reference import paste_masks, upsample
from maskjet.ops.selection import MaskQueries, SizeTable


def encode_masks(mask_logits: torch.Tensor, queries: MaskQueries, sizes: SizeTable) -> list[list[bytes]]:
    """Encode masks of [B, Q, h, w]; see `ops.encode_masks`."""
    if queries.boxes is not None:
        return _encode_in_boxes(mask_logits, queries, queries.boxes, sizes)
    return [encode_dense(masks) for masks, _ in paste_masks(mask_logits, queries, sizes)]


def _encode_in_boxes(
    mask_logits: torch.Tensor, queries: MaskQueries, boxes: torch.Tensor, sizes: SizeTable
) -> list[list[bytes]]:
    encoded = []
    for image, (rows, size) in enumerate(zip(queries.rows(), sizes.hw, strict=True)):
        masks = [
            values_in_box(mask_logits[image, row].float(), box, size) > 0
            for row, box in zip(rows.tolist(), boxes[image].tolist(), strict=False)
        ]
        encoded.append(encode_dense(torch.stack(masks)) if masks else [])
    return encoded


def encode_dense(masks: torch.Tensor) -> list[bytes]:
    """COCO strings of full-size masks, bool or uint8 [n, H, W]."""
    return [rle["counts"] for rle in coco_rle.encode(masks.cpu().numpy())]


def values_in_box(mask: torch.Tensor, box: Sequence[int], size: tuple[int, int]) -> torch.Tensor:
    """Paste a mask [h, w], resized to its box (left, top, width, height), into an image of minus infinity.

    Raises:
        InputError: The box is too large to resize a mask to it; the other implementations compute the image only.
    """
    left, top, width, height = box
    image = mask.new_full(size, -torch.inf)
    if width < 1 or height < 1:
        return image
    limits.check("mask_pixels", width * height, "a box has")
    rows, columns = slice(max(top, 0), max(top + height, 0)), slice(max(left, 0), max(left + width, 0))
    part = image[rows, columns]
    resized = upsample(mask[None], height, width)[0]
    part.copy_(resized[rows.start - top :, columns.start - left :][: part.shape[0], : part.shape[1]])
    return image
