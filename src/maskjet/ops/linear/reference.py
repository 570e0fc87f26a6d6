"""The definition of linear, in plain PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F


class Norm(NamedTuple):
    """A layer norm."""

    weight: torch.Tensor
    """float32 [N]."""
    bias: torch.Tensor
    """float32 [N]."""
    eps: float
    """Added to the variance."""


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
    norm: Norm | None,
    activation: str,
    eps: float,
) -> None:
    """Write the layer's result into out [M, N]; see `ops.linear`."""
    product = x.float() @ weight.float().T
    if sums is not None:
        total, squares = sums.sum(dim=2).unbind(dim=1)
        mean = total / x.shape[1]
        product = product * torch.rsqrt(squares / x.shape[1] - mean * mean + eps)[:, None]
    values, added = product + bias, 0 if residual is None else residual.float()
    if norm is None:
        values = ACTIVATIONS[activation](values) + added
    else:
        normed = F.layer_norm(values + added, (len(weight),), norm.weight, norm.bias, norm.eps)
        values = ACTIVATIONS[activation](normed)
    out.copy_(values)
    if out_sums is not None:
        parts = values.view(len(x), out_sums.shape[2], -1)
        out_sums[:, 0], out_sums[:, 1] = parts.sum(dim=2), parts.square().sum(dim=2)
