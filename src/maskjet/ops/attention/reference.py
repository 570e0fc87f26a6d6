"""The definition of attention, in plain PyTorch."""

from __future__ import annotations

import math

import torch


def attention(projections: torch.Tensor, out: torch.Tensor) -> None:
    """Write softmax attention with weights proportional to 2 ** (query · key).

    That is softmax attention if the queries are multiplied by log₂ e / √D, best in the weights that make them.

    Args:
        projections: float16 or bfloat16 [B, L, 3, H, D], contiguous: queries, keys and values of H heads for each of L
            tokens, as one linear layer gives them. D is 16, 32, 64 or 128.
        out: Of the same type, [B, L, H × D], contiguous.
    """
    query, key, value = projections.float().permute(2, 0, 3, 1, 4).unbind()
    weights = (query @ key.mT * math.log(2)).softmax(dim=-1)
    out.copy_((weights @ value).transpose(1, 2).flatten(2))
