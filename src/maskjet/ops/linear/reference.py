"""The definition of linear, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

ACTIVATIONS = {"none": lambda x: x, "gelu": F.gelu, "relu": F.relu, "silu": F.silu}


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None,
    sums: torch.Tensor | None,
    out: torch.Tensor,
    out_sums: torch.Tensor | None,
    *,
    activation: str,
    eps: float,
) -> None:
    """Write activation(rstd × (x @ weightᵀ) + bias) + residual into out [M, N]; see `ops.linear`."""
    product = x.float() @ weight.float().T
    if sums is not None:
        total, squares = sums.sum(dim=2).unbind(dim=1)
        mean = total / x.shape[1]
        product = product * torch.rsqrt(squares / x.shape[1] - mean * mean + eps)[:, None]
    values = ACTIVATIONS[activation](product + bias)
    if residual is not None:
        values = values + residual.float()
    out.copy_(values)
    if out_sums is not None:
        parts = values.view(len(x), out_sums.shape[2], -1)
        out_sums[:, 0], out_sums[:, 1] = parts.sum(dim=2), parts.square().sum(dim=2)
