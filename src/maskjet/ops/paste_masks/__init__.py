"""Mask logits to masks of the image's size."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from maskjet.errors import InputError
from maskjet.ops.canvas import Canvas, check_canvases
from maskjet.ops.paste_masks import reference
from maskjet.ops.record import FLOATS, describe
from maskjet.ops.selection import ImageSizes, MaskQueries, Selection, SizeTable, check_image_sizes, mask_queries


def paste_masks(
    mask_logits: torch.Tensor,
    query: Selection | Sequence[torch.Tensor],
    image_sizes: ImageSizes,
    *,
    canvases: Sequence[Canvas] | None = None,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Upsample the masks of some queries to their image and threshold them.

    Args:
        mask_logits: float32, float16 or bfloat16 [B, Q, h, w]; positive is inside.
        query: Which masks, in which order: a `Selection`, or per image an integer tensor [n].
        image_sizes: (height, width) in pixels, one per image.
        canvases: Per image, what its masks cover, as `Region.canvas` gives for a letterbox; None: the image.

    Returns:
        Masks uint8 [n, H, W], 1 inside, and bool [n], whether a mask has any pixel inside, per image.

    Raises:
        InputError: An argument is not as above.

    A mask is `F.interpolate(mask, (H, W), mode="bilinear", align_corners=False) > 0` in float32, of which a canvas
    larger than the image shows a part. Before blending, infinite logits count as ±1e30 and NaN as -1e30. It is the
    definition of `ops.encode_masks`, and has no faster implementation.
    """
    queries, sizes = check_masks(mask_logits, query, image_sizes)
    table = SizeTable.of(sizes, mask_logits.device, check_canvases(canvases, sizes))
    return reference.paste_masks(mask_logits, queries, table)


def check_masks(
    mask_logits: torch.Tensor, query: Selection | Sequence[torch.Tensor], image_sizes: ImageSizes
) -> tuple[MaskQueries, list[tuple[int, int]]]:
    """Check the arguments that the mask ops share.

    Raises:
        InputError: The logits are malformed, or the queries or sizes don't match them.
    """
    is_right = isinstance(mask_logits, torch.Tensor) and mask_logits.dtype in FLOATS and mask_logits.ndim == 4
    if not is_right or 0 in mask_logits.shape[2:]:
        raise InputError(
            "mask_logits must be float32, float16 or bfloat16 [B, Q, h, w] of at least one logit per mask, "
            f"got {describe(mask_logits)}."
        )
    batch, masks = mask_logits.shape[:2]
    return mask_queries(query, batch, masks, mask_logits.device), check_image_sizes(image_sizes, batch)
