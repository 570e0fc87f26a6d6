"""The device code of rank_tokens; see `rank_tokens/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def rank_tokens_kernel(
    scores_ptr,
    out_ptr,
    TOKENS: tl.constexpr,
    PARTS: tl.constexpr,
    COUNT: tl.constexpr,
    RANKED: tl.constexpr,
    RIVALS: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Rank RANKED tokens of an image by counting the tokens before them; grid (blocks of tokens, B).

    scores: float32 [B, TOKENS, PARTS].

    out: int32 [B, COUNT].
    """
    token = tl.program_id(0) * RANKED + tl.arange(0, RANKED)
    first = tl.program_id(1) * TOKENS
    if WAITS:
        gdc_wait()
    best = _best(scores_ptr, first, token, TOKENS, PARTS)
    before = tl.zeros((RANKED, RIVALS), tl.int32)
    # Rivals in another block all come before or after the program's tokens, so ties need no indices there.
    own = tl.program_id(0) * RANKED // RIVALS * RIVALS
    for start in range(0, own, RIVALS):
        other = _best(scores_ptr, first, start + tl.arange(0, RIVALS), TOKENS, PARTS)[None, :]
        before += (other >= best[:, None]).to(tl.int32)
    rival = own + tl.arange(0, RIVALS)
    other = _best(scores_ptr, first, rival, TOKENS, PARTS)[None, :]
    is_tie = (other == best[:, None]) & (rival[None, :] < token[:, None])
    before += ((other > best[:, None]) | is_tie).to(tl.int32)
    for start in range(own + RIVALS, TOKENS, RIVALS):
        other = _best(scores_ptr, first, start + tl.arange(0, RIVALS), TOKENS, PARTS)[None, :]
        before += (other > best[:, None]).to(tl.int32)
    if WAITS:
        gdc_launch_dependents()
    rank = tl.sum(before, axis=1)
    is_chosen = (token < TOKENS) & (rank < COUNT)
    tl.store(out_ptr + tl.program_id(1) * COUNT + rank, first + token, mask=is_chosen)


@triton.jit
def _best(scores_ptr, first, token, TOKENS: tl.constexpr, PARTS: tl.constexpr):
    """The best score of each token; infinity for NaN, minus infinity past the last token."""
    scores_ptr += (first + token) * PARTS
    best = tl.full(token.shape, float("-inf"), tl.float32)
    for part in tl.static_range(PARTS):
        score = tl.load(scores_ptr + part, mask=token < TOKENS, other=float("-inf"))
        best = tl.maximum(best, score, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(best == best, best, float("inf"))
