"""The definition of rank_tokens, in plain PyTorch."""

from __future__ import annotations

import torch


def rank_tokens(scores: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write the rows of the best tokens; see `ops.rank_tokens`."""
    best = scores.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(dim=2)
    order = best.argsort(dim=1, descending=True, stable=True)[:, : out.shape[1]]
    first = torch.arange(len(scores), dtype=torch.int64, device=scores.device)[:, None] * scores.shape[1]
    out.copy_(order + first)
