"""The definition of linear, in plain PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from maskjet.ops.linear.tiles import Workspace


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
    *,
    out: torch.Tensor,
    rows: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
    out_sums: torch.Tensor | None = None,
    norm: Norm | None = None,
    last_norm: Norm | None = None,
    activation: str = "none",
    eps: float = 1e-6,
    gives_maxima: bool = False,
    workspace: Workspace | None = None,  # noqa: ARG001
) -> None:
    """Write the layer's result into out; see `ops.linear`."""
    given = gather(x, rows, weight.shape[1] // x.shape[1])
    product = given.float() @ weight.float().T
    if sums is not None:
        total, squares = (sums if rows is None else sums[rows[0].long()]).sum(dim=2).unbind(dim=1)
        mean = total / x.shape[1]
        product = product * torch.rsqrt(squares / x.shape[1] - mean * mean + eps)[:, None]
    values, added = product + bias, 0 if residual is None else residual.float()
    if norm is None:
        values = ACTIVATIONS[activation](values) + added
    else:
        values = ACTIVATIONS[activation](_normalise(values + added, norm))
    if last_norm is not None:
        values = _normalise(values, last_norm)
    if out_sums is not None:
        parts = values.view(len(values), out_sums.shape[2], -1)
        out_sums[:, 0], out_sums[:, 1] = parts.sum(dim=2), parts.square().sum(dim=2)
    if gives_maxima:
        values = values.view(*out.shape, -1).amax(dim=2)
    out.copy_(values[:, : out.shape[1]])


def gather(x: torch.Tensor, rows: torch.Tensor | None, segments: int) -> torch.Tensor:
    """Rows of x side by side, [M, segments × K]: those that `rows` names, else each row with itself."""
    if rows is None:
        return x.repeat(1, segments)
    found = x[rows.long().clamp(min=0)] * (rows >= 0)[..., None]
    return found.transpose(0, 1).flatten(1)


def _normalise(values: torch.Tensor, norm: Norm) -> torch.Tensor:
    return F.layer_norm(values, (values.shape[1],), norm.weight, norm.bias, norm.eps)
