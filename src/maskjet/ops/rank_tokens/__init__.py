"""The tokens with the highest scores, which a two-stage transformer proposes as queries."""

from __future__ import annotations

import torch

from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.gpu import make_op
from maskjet.ops.rank_tokens import reference
from maskjet.ops.record import describe, is_packed, is_whole


def rank_tokens(scores: torch.Tensor, *, count: int, implementation: Implementation = "auto") -> torch.Tensor:
    """Find the tokens of each image with the highest scores, best first; ties by index; NaN counts as infinity.

    On a GPU it is one launch on the current stream, which never waits.

    Args:
        scores: float32 [B, T, P], contiguous, P at least 1: a token's score is the largest of P values. B × T is below
            2³¹.
        count: How many to find, 0..T.
        implementation: "auto", "reference" or "triton".

    Returns:
        int32 [B, count]: rows of the tokens among those of all images, for `linear`.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these tensors.

    Equal to the reference.

    Examples:
        >>> rank_tokens(torch.tensor([[[0.1], [0.3], [0.2]], [[0.3], [0.1], [0.2]]]), count=2)
        tensor([[1, 2],
                [3, 5]], dtype=torch.int32)
    """
    is_right = is_packed(scores, (torch.float32,), 3) and scores.shape[2]
    if not is_right or scores.shape[0] * scores.shape[1] >= 2**31:
        raise InputError(f"scores must be float32 [B, T, P], contiguous, got {describe(scores)}.")
    if not is_whole(count) or not 0 <= count <= scores.shape[1]:
        raise InputError(f"count must be a whole number from 0 to {scores.shape[1]}, got {count!r}.")
    out = torch.empty(len(scores), int(count), dtype=torch.int32, device=scores.device)
    RECORD.choose(implementation, scores).run(scores, out=out)
    return out


RECORD = make_op(rank_tokens, reference.rank_tokens, dtypes=(torch.float32,))
