"""Which rows of a matrix are whose: tables for `ops.linear`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from maskjet.networks.rfdetr.backbone import join_windows
from maskjet.spec import ModelSpec


def find_patches(spec: ModelSpec, batch: int) -> Tensor:
    """The token that sees each pixel of the grid, int32 [1, B × tokens]: tokens are in windows, after a class token."""
    windows = spec.windows**2
    tokens = torch.arange(spec.tokens + windows).view(windows, -1, 1)[:, 1:]
    return _per_image(join_windows(tokens, spec.grid_hw, spec.windows).view(1, -1), batch, spec.tokens + windows)


def find_neighbours(grid_hw: tuple[int, int], batch: int) -> Tensor:
    """The 3 × 3 pixels around each pixel, row by row, int32 [9, B × pixels]; -1 outside the image."""
    height, width = grid_hw
    pixels = F.pad(torch.arange(height * width).view(grid_hw), (1, 1, 1, 1), value=-1)
    around = pixels.unfold(0, height, 1).unfold(1, width, 1)  # [3, 3, height, width]
    return _per_image(around.reshape(9, -1), batch, height * width)


def find_inside(is_inside: Tensor, batch: int) -> Tensor | None:
    """The pixels themselves, int32 [1, B × pixels], -1 where not inside; None if all are."""
    if is_inside.all():
        return None
    pixels = torch.arange(len(is_inside)).where(is_inside.cpu(), -1)
    return _per_image(pixels[None], batch, len(is_inside)).to(is_inside.device)


def _per_image(rows: Tensor, batch: int, step: int) -> Tensor:
    """Rows [S, N] of one image as those of a batch, [S, B × N]; -1 stays."""
    first = torch.arange(batch)[:, None] * step
    return (rows[:, None] + first).where(rows[:, None] >= 0, -1).flatten(1).int().contiguous()
