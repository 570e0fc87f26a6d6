"""The device code of attention; see `attention/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from maskjet.ops.triton_language import dot

_LEAST = tl.constexpr(-1e30)  # below every score; minus infinity minus itself would be NaN


@triton.jit
def attention_kernel(
    projections_ptr,
    out_ptr,
    LENGTH: tl.constexpr,
    HEADS: tl.constexpr,
    SIDE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    REST: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Compute some queries of one head; grid (blocks of queries, HEADS, B).

    projections: floats [B, LENGTH, 3, HEADS, SIDE], contiguous.

    out: floats [B, LENGTH, HEADS × SIDE], contiguous.

    REST: size of the last block, for keys that fill no block of KEYS; a power of two.
    """
    head = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64) * LENGTH
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    channel = tl.arange(0, SIDE)
    projections_ptr += sequence * (3 * HEADS * SIDE) + head * SIDE
    if WAITS:
        gdc_wait()
    row = tl.minimum(query, LENGTH - 1) * (3 * HEADS * SIDE)
    queries = tl.load(projections_ptr + row[:, None] + channel[None, :])
    state = (
        tl.full((QUERIES,), _LEAST, tl.float32),
        tl.zeros((QUERIES,), tl.float32),
        tl.zeros((QUERIES, SIDE), tl.float32),
    )
    whole: tl.constexpr = LENGTH // KEYS * KEYS
    for start in range(0, whole, KEYS):
        state = _add_keys(projections_ptr, queries, state, start, LENGTH, HEADS, SIDE, KEYS, False)
    if whole < LENGTH:
        state = _add_keys(projections_ptr, queries, state, whole, LENGTH, HEADS, SIDE, REST, True)
    if WAITS:
        gdc_launch_dependents()
    _, total, context = state
    out_ptr += (sequence + query)[:, None] * (HEADS * SIDE) + head * SIDE + channel[None, :]
    tl.store(out_ptr, (context / total[:, None]).to(out_ptr.dtype.element_ty), mask=(query < LENGTH)[:, None])


@triton.jit
def _add_keys(
    projections_ptr,
    queries,
    state,
    start,
    LENGTH: tl.constexpr,
    HEADS: tl.constexpr,
    SIDE: tl.constexpr,
    KEYS: tl.constexpr,
    IS_LAST: tl.constexpr,
):
    """Update the online softmax by a block of keys: largest score, sum of weights and weighted values."""
    largest, total, context = state
    key = start + tl.arange(0, KEYS)
    channel = tl.arange(0, SIDE)
    token = tl.minimum(key, LENGTH - 1) if IS_LAST else key
    row = token * (3 * HEADS * SIDE)
    keys = tl.load(projections_ptr + HEADS * SIDE + row[None, :] + channel[:, None])
    values = tl.load(projections_ptr + 2 * HEADS * SIDE + row[:, None] + channel[None, :])
    scores = dot(queries, keys, tl.zeros((queries.shape[0], KEYS), tl.float32))
    if IS_LAST:
        scores = tl.where((key < LENGTH)[None, :], scores, _LEAST)
    raised = tl.maximum(largest, tl.max(scores, axis=1))
    weights = tl.exp2(scores - raised[:, None])
    rescale = tl.exp2(largest - raised)
    context = dot(weights.to(values.dtype), values, context * rescale[:, None])
    return raised, total * rescale + tl.sum(weights, axis=1), context
