"""The definition of refine_boxes, in plain PyTorch."""

from __future__ import annotations

import torch


def refine_boxes(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    references: torch.Tensor,
    *,
    rows: torch.Tensor | None,
    offsets: torch.Tensor | None,
    frequencies: torch.Tensor | None,
    out: torch.Tensor,
    out_embedding: torch.Tensor | None,
) -> None:
    """Move reference boxes by hidden @ weightᵀ + bias, in float32: a shift in units of their size, and a log scale.

    Args:
        hidden: float16 or bfloat16 [M, K], contiguous.
        weight: float32 [4, K], contiguous: dx, dy, log of the width's and of the height's factor.
        bias: float32 [4].
        references: float32 [M, 4] cxcywh, contiguous; or a table [R, 4], with `rows`.
        rows: int32 [M], at least 0: rows of the table, modulo R, as `rank_tokens` gives them.
        offsets: float32 [Q, 4], contiguous: a second move, of each Q boxes in turn; Q divides M.
        frequencies: float32 [D], contiguous: angles per unit of a coordinate.
        out: Boxes, float32 [M, 4] cxcywh, contiguous.
        out_embedding: With `frequencies`, of the type of hidden, [M, 4 × D], contiguous: sines of the even angles of
            cy, cx, w, h and cosines of the odd ones (DAB-DETR).
    """
    if rows is not None:
        references = references[(rows % len(references)).long()]
    boxes = move_boxes(references, hidden.float() @ weight.T + bias)
    if offsets is not None:
        boxes = move_boxes(boxes, offsets.repeat(len(boxes) // len(offsets), 1))
    out.copy_(boxes)
    if frequencies is not None and out_embedding is not None:
        angles = boxes[:, [1, 0, 2, 3], None] * frequencies
        pairs = torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), dim=-1)
        out_embedding.copy_(pairs.flatten(1))


def move_boxes(boxes: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Shift float32 boxes [..., 4] cxcywh in units of their size, and scale them by exp of a delta's last two numbers.

    It is rfdetr's `bbox_reparam`.
    """
    delta, size = delta.float(), boxes[..., 2:]
    return torch.cat((delta[..., :2] * size + boxes[..., :2], delta[..., 2:].exp() * size), dim=-1)
