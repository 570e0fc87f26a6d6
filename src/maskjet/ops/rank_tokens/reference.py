"""The definition of rank_tokens, in plain PyTorch."""

from __future__ import annotations

import torch


def rank_tokens(scores: torch.Tensor, *, out: torch.Tensor) -> None:
    """Find the tokens of each image with the highest scores, best first; ties by index; NaN counts as infinity.

    Args:
        scores: float32 [B, T, P], contiguous, P at least 1: a token's score is the largest of P values. B × T is below
            2³¹.
        out: int32 [B, count], contiguous, count at most T: rows of the tokens among those of all images, for `linear`.
    """
    best = scores.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(dim=2)
    order = best.argsort(dim=1, descending=True, stable=True)[:, : out.shape[1]]
    first = torch.arange(len(scores), dtype=torch.int64, device=scores.device)[:, None] * scores.shape[1]
    out.copy_(order + first)
