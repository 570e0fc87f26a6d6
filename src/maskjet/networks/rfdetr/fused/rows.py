"""Tables of rows that `ops.linear` gathers from a matrix of tokens or pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from maskjet.networks.rfdetr.backbone import join_windows
from maskjet.spec import ModelSpec


def find_patches(spec: ModelSpec, batch: int) -> Tensor:
    """The row of each grid cell's patch token, int32 [B × tokens]; a window's patches follow its class token."""
    windows = spec.windows**2
    tokens = torch.arange(spec.tokens + windows, dtype=torch.int64, device="cpu").view(windows, -1, 1)[:, 1:]
    return _per_image(join_windows(tokens, spec.grid_hw, spec.windows).flatten(), batch, spec.tokens + windows)


def find_inside(is_inside: Tensor, batch: int) -> Tensor | None:
    """The row of each grid cell, int32 [B × tokens], -1 for cells to leave out; None if there are none."""
    if is_inside.all():
        return None
    pixels = torch.arange(len(is_inside), dtype=torch.int64, device="cpu").where(is_inside.cpu(), -1)
    return _per_image(pixels, batch, len(is_inside)).to(is_inside.device)


def _per_image(rows: Tensor, batch: int, step: int) -> Tensor:
    """Repeat an image's rows for a batch, `step` rows apart; -1 stays."""
    first = torch.arange(batch, dtype=torch.int64, device="cpu")[:, None] * step
    return (rows + first).where(rows >= 0, -1).flatten().int()
