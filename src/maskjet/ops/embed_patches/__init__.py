"""The patch embedding of a vision transformer."""

from __future__ import annotations

import math

import torch

from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.embed_patches import reference
from maskjet.ops.gpu import make_op
from maskjet.ops.linear import count_partials
from maskjet.ops.record import HALVES, check_like, describe, is_packed, is_whole

_CHANNELS = 3


def embed_patches(
    images: torch.Tensor,
    weight: torch.Tensor,
    positions: torch.Tensor,
    *,
    windows: int,
    implementation: Implementation = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert images to tokens: windows row by row, each with its class token and then its patches row by row.

    On a GPU it is one launch on the current stream, which never waits.

    Args:
        images: float16 or bfloat16 [B, 3, H, W], contiguous; sides are multiples of P × windows.
        weight: Of the same type, [N, 3 × P × P], contiguous; N is a multiple of 16.
        positions: float32 [tokens of an image, N], contiguous: added to the products; a class token's row is its value.
        windows: Windows per side.
        implementation: "auto", "reference" or "triton".

    Returns:
        Tokens of the images' type [B × tokens of an image, N], and float32 [B × tokens, 2, P]: partial sums and sums of
        squares of their rows, for `linear`.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these tensors.

    Equal to the reference within an ULP of the largest value of a row.

    Examples:
        >>> images, weight = torch.ones(2, 3, 8, 8, dtype=torch.float16), torch.ones(16, 48, dtype=torch.float16)
        >>> tokens, sums = embed_patches(images, weight, torch.zeros(5, 16), windows=1)
        >>> tokens.shape, tokens[0, 0].item(), tokens[1, 0].item()
        (torch.Size([10, 16]), 0.0, 48.0)
    """
    if not is_packed(images, HALVES, 4) or images.shape[1] != _CHANNELS:
        raise InputError(f"images must be float16 or bfloat16 [B, 3, H, W], contiguous, got {describe(images)}.")
    if not is_whole(windows) or windows < 1:
        raise InputError(f"windows must be a whole number from 1, got {windows!r}.")
    outputs = len(weight) if isinstance(weight, torch.Tensor) and weight.ndim == 2 else 0
    pixels = weight.shape[1] // _CHANNELS if outputs else 0
    side = math.isqrt(pixels)
    check_like("weight", weight, images.dtype, (outputs, _CHANNELS * side**2), images.device)
    sides = images.shape[2:]
    if not outputs or outputs % 16 or not side or any(length % (side * windows) or not length for length in sides):
        raise InputError(
            f"weight must be [N, 3 × P × P], N a multiple of 16, P × {windows} a divisor of {list(sides)}, "
            f"got {describe(weight)}."
        )
    tokens = math.prod(length // side for length in sides) + windows**2
    check_like("positions", positions, torch.float32, (tokens, outputs), images.device)
    rows = len(images) * tokens
    out = torch.empty(rows, outputs, dtype=images.dtype, device=images.device)
    sums = torch.empty(rows, 2, count_partials(rows, 64, outputs), dtype=torch.float32, device=images.device)
    run = RECORD.choose(implementation, images).run
    run(images, weight, positions, windows=windows, out=out, out_sums=sums)
    return out, sums


RECORD = make_op(embed_patches, reference.embed_patches)
