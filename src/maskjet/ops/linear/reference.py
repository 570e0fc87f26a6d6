"""The definition of linear, in plain PyTorch."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from maskjet.ops.linear.tiles import Workspace


class Norm(NamedTuple):
    """Parameters of a layer norm."""

    weight: torch.Tensor
    """float32 [N]: scale per channel."""
    bias: torch.Tensor
    """float32 [N]: shift per channel."""
    eps: float
    """Epsilon added to the variance."""


Activation = Literal["none", "gelu", "relu", "silu"]
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
    """Compute activation(d × (x @ weightᵀ) + bias) + residual, in float32 until it is rounded to the output.

    With `norm`, compute last_norm(activation(norm(d × (x @ weightᵀ) + bias + residual))). d is 1, or with `sums` the
    inverse deviation of each row of x: with a norm folded into the weights that is a layer norm before the layer.

    With `rows` the input is gathered: rows of x, or zeros. With `image_hw` it is a 3 × 3 convolution: S is 9, and the
    input has the pixels around each pixel. Otherwise a weight wider than x takes each row of x S times: two terms of a
    weight side by side are as exact as float32.

    Args:
        x: float16 or bfloat16 [any, K], rows may be strided; K is a multiple of 16.
        weight: Of x's type, [N, S × K], contiguous; N is a multiple of 16.
        bias: float32 [N].
        out: Of x's type or float32 [M, N], rows may be strided, or fewer columns, which drops the last ones.
        rows: int32 [M], contiguous: the rows of x to take, each below len(x), or -1 for zeros; not with `image_hw`.
        image_hw: Height and width of images whose pixels, row by row, are the rows of x. The weight is then
            [N, 9 × K], for the 3 × 3 pixels around each, row by row; those outside of the image are zeros.
        residual: Of x's type, [M, N], rows may be strided.
        sums: float32 [any, 2, P], contiguous: sums and sums of squares of the rows of x, each split into P partial
            sums; not with `image_hw`.
        out_sums: float32 [M, 2, P], contiguous: `sums` of the output, before rounding; P is that of `count_partials`.
        residual_norm: A layer norm of the residual before it is added; it needs the residual's sums.
        residual_sums: float32 [M, 2, P], contiguous: `sums` of the residual's rows.
        norm: A layer norm behind the layer, of N; N is then a power of two, at most 512.
        last_norm: A layer norm behind the activation, likewise; not with `residual`, unless there is a `norm`.
        activation: "none", "gelu" (by the error function), "relu" or "silu".
        eps: Added to the variance of the rows of x.
        gives_maxima: out is float32 [M, P], the largest value of each of P blocks of columns.
        workspace: Memory for partial sums of few tiles; without it tiles are not split.
    """
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
