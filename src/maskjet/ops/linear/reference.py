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
    image_hw: tuple[int, int] | None = None,
    residual: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
    out_sums: torch.Tensor | None = None,
    residual_norm: Norm | None = None,
    residual_sums: torch.Tensor | None = None,
    norm: Norm | None = None,
    last_norm: Norm | None = None,
    activation: str = "none",
    eps: float = 1e-6,
    gives_maxima: bool = False,
    workspace: Workspace | None = None,  # noqa: ARG001
) -> None:
    """Write the layer's result into out; see `ops.linear`."""
    given = _around(x, image_hw) if image_hw else _take(x, rows).repeat(1, weight.shape[1] // x.shape[1])
    product = given.float() @ weight.float().T
    if sums is not None:
        _, inverse = _measure(sums if rows is None else sums[rows.long()], x.shape[1], eps)
        product = product * inverse
    values, added = (
        product + bias,
        torch.zeros((), dtype=torch.float32, device=x.device) if residual is None else residual.float(),
    )
    if residual_norm is not None and residual_sums is not None:
        mean, inverse = _measure(residual_sums, len(weight), residual_norm.eps)
        added = (added - mean) * inverse * residual_norm.weight + residual_norm.bias
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


def _take(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return x if rows is None else x[rows.long().clamp(min=0)] * (rows >= 0)[:, None]


def _around(x: torch.Tensor, image_hw: tuple[int, int]) -> torch.Tensor:
    """Rows of the 3 × 3 pixels around each pixel, zeros outside the image."""
    height, width = image_hw
    padded = F.pad(x.reshape(-1, height, width, x.shape[1]), (0, 0, 1, 1, 1, 1))
    moved = [padded[:, down : down + height, across : across + width] for down in range(3) for across in range(3)]
    return torch.cat(moved, dim=3).flatten(0, 2)


def _measure(sums: torch.Tensor, width: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of rows, and 1 / their standard deviation, from their sums: [M, 1] each."""
    mean, square = (sums.sum(dim=2, keepdim=True) / width).unbind(dim=1)
    return mean, torch.rsqrt(square - mean * mean + eps)


def _normalise(values: torch.Tensor, norm: Norm) -> torch.Tensor:
    return F.layer_norm(values, (values.shape[1],), norm.weight, norm.bias, norm.eps)
