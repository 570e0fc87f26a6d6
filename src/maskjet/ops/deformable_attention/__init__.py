"""Deformable attention: each head samples a few points around its query's box."""

from __future__ import annotations

import torch

from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.deformable_attention import reference
from maskjet.ops.gpu import make_op
from maskjet.ops.record import HALVES, check_like, describe, is_packed, is_power, name_of

_AXES = 3


def deformable_attention(
    projections: torch.Tensor, boxes: torch.Tensor, values: torch.Tensor, *, implementation: Implementation = "auto"
) -> torch.Tensor:
    """Sample values at points around boxes, and average them by the softmax of the points' logits, for each head.

    A point is centre + offset × size × 0.5 / points, as in Deformable DETR with one level; sampling is bilinear, with
    zeros outside the image. On a GPU it is one launch on the current stream, which never waits.

    Args:
        projections: float16 or bfloat16 [B, Q, P, 3, H], contiguous: for each of P points and H heads, the
            offsets along x and y and the logit. H is a power of two.
        boxes: float32 [B, Q, 4] cxcywh, 0..1 of the image, contiguous.
        values: Of the projections' type, [B, h, w, C]; pixels may be strided, channels not. C / H is a power of two.
        implementation: "auto", "reference" or "triton".

    Returns:
        Of the same type, [B, Q, C].

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these tensors.

    Equal to the reference within an ULP of the largest value.

    Examples:
        >>> projections = torch.zeros(1, 1, 2, 3, 1, dtype=torch.float16)
        >>> values = torch.arange(4, dtype=torch.float16).view(1, 2, 2, 1)
        >>> deformable_attention(projections, torch.tensor([[[0.5, 0.5, 1.0, 1.0]]]), values).item()
        1.5
    """
    is_right = is_packed(projections, HALVES, 5) and projections.shape[2] and projections.shape[3] == _AXES
    if not is_right or not is_power(projections.shape[4]):
        raise InputError(
            "projections must be float16 or bfloat16 [B, Q, P, 3, H], contiguous, H a power of two, "
            f"got {describe(projections)}."
        )
    batch, queries, _, _, heads = projections.shape
    check_like("boxes", boxes, torch.float32, (batch, queries, 4), projections.device)
    is_alike = isinstance(values, torch.Tensor) and (values.dtype, values.device) == (
        projections.dtype,
        projections.device,
    )
    if not is_alike or values.ndim != 4 or len(values) != batch or not _fits(values, heads):
        wanted = f"{name_of(projections.dtype)} [{batch}, h, w, C] on {projections.device}, pixels evenly strided"
        raise InputError(f"values must be {wanted}, C / {heads} a power of two, got {describe(values)}.")
    out = torch.empty(batch, queries, values.shape[3], dtype=values.dtype, device=values.device)
    RECORD.choose(implementation, projections).run(projections, boxes, values, out=out)
    return out


def _fits(values: torch.Tensor, heads: int) -> bool:
    _, height, width, channels = values.shape
    image, line, pixel, channel = values.stride()
    is_even = line == width * pixel and (image == height * line or len(values) <= 1)
    return bool(height and width and is_even and channel == 1) and is_power(channels / heads)


RECORD = make_op(deformable_attention, reference.deformable_attention)
