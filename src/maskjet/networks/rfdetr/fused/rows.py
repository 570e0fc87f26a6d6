"""Which rows of a matrix are whose: tables for `ops.linear`."""

from __future__ import annotations

import torch
from torch import Tensor

from maskjet.networks.rfdetr.backbone import join_windows
from maskjet.spec import ModelSpec


def find_patches(spec: ModelSpec, batch: int) -> Tensor:
    """The token that sees each pixel of the grid, int32 [B × tokens]: tokens are in windows, after a class token."""
    windows = spec.windows**2
    tokens = torch.arange(spec.tokens + windows).view(windows, -1, 1)[:, 1:]
    return _per_image(join_windows(tokens, spec.grid_hw, spec.windows).flatten(), batch, spec.tokens + windows)


def find_inside(is_inside: Tensor, batch: int) -> Tensor | None:
    """The pixels themselves, int32 [B × pixels], -1 where not inside; None if all are."""
    if is_inside.all():
        return None
    pixels = torch.arange(len(is_inside)).where(is_inside.cpu(), -1)
    return _per_image(pixels, batch, len(is_inside)).to(is_inside.device)


def _per_image(rows: Tensor, batch: int, step: int) -> Tensor:
    """Rows of one image as those of a batch; -1 stays."""
    first = torch.arange(batch)[:, None] * step
    return (rows + first).where(rows >= 0, -1).flatten().int()
