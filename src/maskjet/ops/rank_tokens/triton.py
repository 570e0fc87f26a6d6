"""rank_tokens on an NVIDIA GPU: one launch without a sort; each token's place is the number of tokens before it."""

from __future__ import annotations

import torch
import triton

from maskjet.ops.gpu import MULTIPROCESSORS, Launchers
from maskjet.ops.rank_tokens.kernels import rank_tokens_kernel

_LAUNCHERS = Launchers(rank_tokens_kernel)
# Tokens per program, which reads all scores of their image, and rivals compared at once.
_FEW, _MANY = (8, 512), (16, 256)


def rank_tokens(scores: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write the rows of the best tokens; see the reference."""
    batch, tokens, parts = scores.shape
    if not out.numel():
        return
    is_many = triton.cdiv(tokens, _MANY[0]) * batch >= 2 * MULTIPROCESSORS
    ranked, rivals = _MANY if is_many else _FEW
    _LAUNCHERS.of(scores.device, 4, 2)(
        (triton.cdiv(tokens, ranked), batch, 1),
        (scores.device,),
        scores,
        out,
        TOKENS=tokens,
        PARTS=parts,
        COUNT=out.shape[1],
        RANKED=ranked,
        RIVALS=rivals,
    )
