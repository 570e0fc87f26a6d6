"""Mask logits to COCO RLE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from maskjet import coco_rle
from maskjet.ops.encode_masks import cpu, reference
from maskjet.ops.gpu import triton_variant
from maskjet.ops.paste_masks import cases, check_masks
from maskjet.ops.record import FLOATS, Implementation, Op, Variant, needs_cpu, serves_any
from maskjet.ops.selection import ImageSizes, Selection


def encode_masks(
    mask_logits: torch.Tensor,
    query: Selection | Sequence[torch.Tensor],
    image_sizes: ImageSizes,
    *,
    implementation: Implementation = "auto",
) -> list[list[bytes]]:
    """Encode the masks of some queries, at the size of their image, as COCO RLE.

    A query that appears several times is rasterised once.

    Args:
        mask_logits: float32, float16 or bfloat16 [B, Q, h, w]; positive is inside.
        query: Which masks, in which order: a `Selection`, or per image an integer tensor [n].
        image_sizes: (height, width) in pixels, one per image.
        implementation: "auto", "reference", "triton" or "cpu".

    Returns:
        Per image the "counts" string of each mask.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these logits.

    The reference is pycocotools' string for `ops.paste_masks`. Equal to it byte for byte, but for pixels whose value
    lies within 1e-5 of zero.

    Example:
        >>> encode_masks(torch.ones(1, 1, 2, 2), [torch.tensor([0])], [(3, 4)])
        [[b'0<']]
    """
    queries, sizes = check_masks(mask_logits, query, image_sizes)
    counts: list[list[bytes]] = RECORD.choose(implementation, mask_logits).run(mask_logits, queries, sizes)
    return counts


def tolerance_used(inputs: dict[str, Any], expected: list[list[bytes]], actual: list[list[bytes]]) -> float:
    """0 where all strings are equal, else the largest value of a differing pixel over the tolerance of paste_masks."""
    used = 0.0
    for image, (theirs, ours) in enumerate(zip(expected, actual, strict=True)):
        if theirs == ours:
            continue
        if len(theirs) != len(ours):
            return float("inf")
        size = inputs["image_sizes"][image]
        masks = (
            np.stack([coco_rle.decode({"size": size, "counts": text}) for text in strings])
            for strings in (theirs, ours)
        )
        used = max(used, cases.differing_share(inputs, image, torch.from_numpy(np.not_equal(*masks))))
    return used


def bytes_moved(inputs: dict[str, Any]) -> int:
    """The logits of each distinct mask once; the strings are small beside them."""
    logits = inputs["mask_logits"]
    return int(sum(len(rows.unique()) for rows in inputs["query"]) * logits[0, 0].numel() * logits.itemsize)


RECORD = Op(
    name="encode_masks",
    public=encode_masks,
    variants={
        "triton": triton_variant("maskjet.ops.encode_masks.triton", "encode_masks", FLOATS),
        "cpu": Variant(cpu.encode_masks, needs_cpu),
        "reference": Variant(reference.encode_masks, serves_any),
    },
    cases=cases.CASES,
    tolerance_used=tolerance_used,
    bytes_moved=bytes_moved,
)
