"""The definition of attention, in plain PyTorch."""

from __future__ import annotations

import math

import torch


def attention(projections: torch.Tensor, out: torch.Tensor) -> None:
    """Write the attention of projections [B, L, 3, H, D] into out [B, L, H × D]; see `ops.attention`."""
    query, key, value = projections.float().permute(2, 0, 3, 1, 4).unbind()
    weights = (query @ key.mT * math.log(2)).softmax(dim=-1)
    out.copy_((weights @ value).transpose(1, 2).flatten(2))
