"""Mask logits to COCO RLE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn.utils.rnn import pad_sequence

from maskjet.config import Implementation
from maskjet.errors import InputError, translate_errors
from maskjet.ops.canvas import Canvas, check_canvases
from maskjet.ops.encode_masks import cpu, reference
from maskjet.ops.gpu import make_op
from maskjet.ops.paste_masks import check_masks
from maskjet.ops.record import FLOATS, Variant, describe, needs_cpu
from maskjet.ops.selection import ImageSizes, MaskQueries, Selection, SizeTable


def encode_masks(
    mask_logits: torch.Tensor,
    query: Selection | Sequence[torch.Tensor],
    image_sizes: ImageSizes,
    *,
    boxes: Sequence[torch.Tensor] | torch.Tensor | None = None,
    canvases: Sequence[Canvas] | None = None,
    implementation: Implementation = "auto",
) -> list[list[bytes]]:
    """Encode the masks of some queries, at the size of their image, as COCO RLE.

    A query that appears several times is rasterised once, unless it has boxes.

    Args:
        mask_logits: float32, float16 or bfloat16 [B, Q, h, w]; positive is inside.
        query: Which masks, in which order: a `Selection`, or per image an integer tensor [n].
        image_sizes: (height, width) in pixels, one per image.
        boxes: int32, per image [n, 4], or [B, K, 4] for a `Selection`: left, top, width and height in pixels of the
            box that each mask fills; it may lie beyond the image. A box without pixels holds nothing. The logits at a
            mask's border must not be positive, since nothing outside its box is inside. None fills the image.
        canvases: Per image, what its masks cover, as `Region.canvas` gives for a letterbox; not with boxes. None: the
            image.
        implementation: "auto", "reference", "triton" or "cpu".

    Returns:
        The "counts" string of each mask, per image.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these logits.

    The reference is pycocotools' string for `ops.paste_masks`. With a box, it encodes the mask resized to the box in an
    empty image, as torchvision's `paste_masks_in_image` does after padding the mask. Equal to it byte for byte, except
    for pixels whose value lies within 1e-5 of zero.

    Examples:
        >>> encode_masks(torch.ones(1, 1, 2, 2), [torch.tensor([0])], [(3, 4)])
        [[b'0<']]
    """
    queries, sizes = check_masks(mask_logits, query, image_sizes)
    if boxes is not None:
        if canvases is not None:
            raise InputError("canvases must be None with boxes, which say where each mask lies.")
        queries = replace(queries, boxes=_check_boxes(boxes, queries))
    table = SizeTable.of(sizes, mask_logits.device, check_canvases(canvases, sizes))
    counts: list[list[bytes]] = RECORD.choose(implementation, mask_logits).run(mask_logits, queries, table)
    return counts


def _check_boxes(boxes: Sequence[torch.Tensor] | torch.Tensor, queries: MaskQueries) -> torch.Tensor:
    """Check boxes, and convert them to int32 [B, K, 4]."""
    shape = (*queries.query.shape, 4)
    if isinstance(boxes, torch.Tensor):
        given = boxes
    else:
        with translate_errors(InputError, "boxes must be int32 tensors [n, 4], one per image"):
            rows = list(boxes)
        if any(not isinstance(row, torch.Tensor) or row.ndim != 2 or row.shape[1] != 4 for row in rows):
            raise InputError("boxes must be int32 tensors [n, 4], one per image.")
        given = pad_sequence(rows, batch_first=True) if rows else torch.empty(0, 0, 4, dtype=torch.int32, device="cpu")
        counts = [len(row) for row in rows]
        if counts != queries.count.tolist():
            raise InputError(f"boxes must have one row per query, {queries.count.tolist()}, got {counts}.")
    if given.dtype != torch.int32 or tuple(given.shape) != shape:
        raise InputError(f"boxes must be int32 {list(shape)}, got {describe(given)}.")
    return given.to(queries.query.device).contiguous()


RECORD = make_op(
    encode_masks,
    Variant(reference.encode_masks),
    dtypes=FLOATS,
    cpu=Variant(cpu.encode_masks, needs_cpu),
    allocate="allocate",
)
