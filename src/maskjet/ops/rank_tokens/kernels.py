"""The device code of rank_tokens; see `rank_tokens/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


@triton.jit
def rank_tokens_kernel(
    scores_ptr,
    out_ptr,
    TOKENS: tl.constexpr,
    PARTS: tl.constexpr,
    COUNT: tl.constexpr,
    WAITS: tl.constexpr,
    RANKED: tl.constexpr,
    RIVALS: tl.constexpr,
):
    """Rank RANKED tokens of an image by counting who is before them; grid (blocks of tokens, B).

    scores: float32 [B, TOKENS, PARTS].

    out: int32 [B, COUNT].
    """
    token = tl.program_id(0) * RANKED + tl.arange(0, RANKED)
    first = tl.program_id(1) * TOKENS
    if WAITS:
        gdc_wait()
    best = _best(scores_ptr, first, token, TOKENS, PARTS)
    rank = tl.zeros((RANKED,), tl.int32)
    for start in range(0, TOKENS, RIVALS):
        rival = start + tl.arange(0, RIVALS)
        other = _best(scores_ptr, first, rival, TOKENS, PARTS)
        is_tie = (other[None, :] == best[:, None]) & (rival[None, :] < token[:, None])
        is_before = ((other[None, :] > best[:, None]) | is_tie) & (rival < TOKENS)[None, :]
        rank += tl.sum(is_before.to(tl.int32), axis=1)
    is_chosen = (token < TOKENS) & (rank < COUNT)
    tl.store(out_ptr + tl.program_id(1) * COUNT + rank, first + token, mask=is_chosen)


@triton.jit
def _best(scores_ptr, first, token, TOKENS: tl.constexpr, PARTS: tl.constexpr):
    """The largest score of tokens; NaN is infinite."""
    part = tl.arange(0, triton.next_power_of_2(PARTS))[None, :]
    is_score = (token < TOKENS)[:, None] & (part < PARTS)
    scores = tl.load(scores_ptr + (first + token)[:, None] * PARTS + part, mask=is_score, other=float("-inf"))
    return tl.max(tl.where(scores == scores, scores, float("inf")), axis=1)
