"""The definition of embed_patches, in plain PyTorch."""

from __future__ import annotations

import math

import torch


def embed_patches(
    images: torch.Tensor,
    weight: torch.Tensor,
    positions: torch.Tensor,
    *,
    windows: int,
    out: torch.Tensor,
    out_sums: torch.Tensor,
) -> None:
    """Convert images to tokens: windows row by row, each with its class token and then its patches row by row.

    Args:
        images: float16 or bfloat16 [B, 3, H, W], contiguous; sides are multiples of side × windows of a patch.
        weight: Of the same type, [N, 3 × side × side], contiguous; N is a multiple of 16.
        positions: float32 [tokens of an image, N], contiguous: added to the products; a class token's row is its value.
        windows: Windows per side.
        out: Tokens of the images' type [B × tokens of an image, N], contiguous.
        out_sums: float32 [B × tokens, 2, P], contiguous: partial sums and sums of squares of their rows, for `linear`.
    """
    batch, channels, height, width = images.shape
    side = math.isqrt(weight.shape[1] // channels)
    rows, columns = height // side // windows, width // side // windows
    patches = images.float().view(batch, channels, windows, rows, side, windows, columns, side)
    patches = patches.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(batch, windows**2, rows * columns, weight.shape[1])
    tokens = patches @ weight.float().T
    tokens = torch.nn.functional.pad(tokens, (0, 0, 1, 0)).flatten(1, 2) + positions
    tokens = tokens.flatten(0, 1)
    out.copy_(tokens)
    parts = tokens.view(*out_sums[:, 0].shape, tokens.shape[1] // out_sums.shape[2])
    out_sums[:, 0], out_sums[:, 1] = parts.sum(dim=2), parts.square().sum(dim=2)
