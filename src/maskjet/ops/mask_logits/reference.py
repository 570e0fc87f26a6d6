"""The definition of mask_logits, in plain PyTorch."""

from __future__ import annotations

import torch


def mask_logits(queries: torch.Tensor, pixels: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write the mask logits; see `ops.mask_logits`."""
    channels = pixels.shape[3]
    products = queries[..., :channels].float() @ pixels.flatten(1, 2).float().mT + queries[..., channels, None].float()
    out.copy_(products.view(out.shape))
