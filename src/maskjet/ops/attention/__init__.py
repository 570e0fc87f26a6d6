"""Softmax attention from packed projections."""

from __future__ import annotations

import torch

from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.attention import reference
from maskjet.ops.gpu import make_op
from maskjet.ops.record import HALVES, describe, is_packed

_SIDES = (16, 32, 64, 128)


def attention(projections: torch.Tensor, *, implementation: Implementation = "auto") -> torch.Tensor:
    """Average the values of a sequence, weighted by 2 ** (query · key).

    That is softmax attention if the queries are multiplied by log₂ e / √D, best in the weights that make them. On a GPU
    it is one launch on the current stream, which never waits and allocates only the result.

    Args:
        projections: float16 or bfloat16 [B, L, 3, H, D], contiguous: queries, keys and values of H heads for each of L
            tokens, as one linear layer gives them. D is 16, 32, 64 or 128.
        implementation: "auto", "reference" or "triton".

    Returns:
        Of the same type, [B, L, H × D].

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these tensors.

    Equal to the reference within two ULP of the largest value.

    Examples:
        >>> attention(torch.ones(1, 5, 3, 2, 16, dtype=torch.float16)).shape
        torch.Size([1, 5, 32])
    """
    if not is_packed(projections, HALVES, 5) or projections.shape[2] != 3 or projections.shape[4] not in _SIDES:
        raise InputError(
            f"projections must be float16 or bfloat16 [B, L, 3, H, D], contiguous, D one of {_SIDES}, "
            f"got {describe(projections)}."
        )
    batch, length, _, heads, side = projections.shape
    out = torch.empty(batch, length, heads * side, dtype=projections.dtype, device=projections.device)
    RECORD.choose(implementation, projections).run(projections, out)
    return out


RECORD = make_op(attention, reference.attention)
