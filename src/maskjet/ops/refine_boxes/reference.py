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
    """Write the boxes and their embedding; see `ops.refine_boxes`."""
    if rows is not None:
        references = references[(rows % len(references)).long()]
    boxes = _move(references, hidden.float() @ weight.T + bias)
    if offsets is not None:
        boxes = _move(boxes, offsets.repeat(len(boxes) // len(offsets), 1))
    out.copy_(boxes)
    if frequencies is not None and out_embedding is not None:
        angles = boxes[:, [1, 0, 2, 3], None] * frequencies
        pairs = torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), dim=-1)
        out_embedding.copy_(pairs.flatten(1))


def _move(boxes: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    size = boxes[:, 2:]
    return torch.cat((delta[:, :2] * size + boxes[:, :2], delta[:, 2:].exp() * size), dim=1)
