"""The last step of a mask head: products of queries and pixels."""

from __future__ import annotations

import torch

from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.gpu import make_op
from maskjet.ops.mask_logits import reference
from maskjet.ops.record import HALVES, describe, is_packed, name_of


def mask_logits(
    queries: torch.Tensor, pixels: torch.Tensor, *, implementation: Implementation = "auto"
) -> torch.Tensor:
    """Compute each query's product with each pixel of its image, plus the query's constant.

    On a GPU it is one launch on the current stream, which never waits.

    Args:
        queries: float16 or bfloat16 [B, Q, more than C], contiguous: C channels, the constant, and unused padding.
        pixels: Of the same type, [B, H, W, C], contiguous; C is a multiple of 16.
        implementation: "auto", "reference" or "triton".

    Returns:
        Of the same type, [B, Q, H, W].

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these tensors.

    Equal to the reference within an ULP of the largest logit of a query.

    Examples:
        >>> queries, pixels = torch.ones(1, 3, 17, dtype=torch.float16), torch.ones(1, 2, 2, 16, dtype=torch.float16)
        >>> mask_logits(queries, pixels)[0, 0].tolist()
        [[17.0, 17.0], [17.0, 17.0]]
    """
    if not is_packed(pixels, HALVES, 4) or not pixels.shape[3] or pixels.shape[3] % 16:
        raise InputError(
            f"pixels must be float16 or bfloat16 [B, H, W, C], contiguous, C a multiple of 16, got {describe(pixels)}."
        )
    batch, height, width, channels = pixels.shape
    is_alike = is_packed(queries, (pixels.dtype,), 3) and queries.device == pixels.device
    if not is_alike or len(queries) != batch or queries.shape[2] <= channels:
        wanted = f"{name_of(pixels.dtype)} [{batch}, Q, more than {channels}] on {pixels.device}, contiguous"
        raise InputError(f"queries must be {wanted}, got {describe(queries)}.")
    out = torch.empty(batch, queries.shape[1], height, width, dtype=pixels.dtype, device=pixels.device)
    RECORD.choose(implementation, queries).run(queries, pixels, out=out)
    return out


RECORD = make_op(mask_logits, reference.mask_logits)
