"""The definition of mask_logits, in plain PyTorch."""

from __future__ import annotations

import torch


def mask_logits(queries: torch.Tensor, pixels: torch.Tensor, *, out: torch.Tensor) -> None:
    """Compute each query's product with each pixel of its image, plus the query's constant.

    Args:
        queries: float16 or bfloat16 [B, Q, more than C], contiguous: C channels, the constant, and unused padding.
        pixels: Of the same type, [B, H, W, C], contiguous; C is a multiple of 16.
        out: Of the same type, [B, Q, H, W], contiguous.
    """
    channels = pixels.shape[3]
    products = queries[..., :channels].float() @ pixels.flatten(1, 2).float().mT + queries[..., channels, None].float()
    out.copy_(products.view(out.shape))
