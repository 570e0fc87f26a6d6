"""A linear layer with what surrounds it: a norm before or behind it, an activation and a residual."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.gpu import triton_variant
from maskjet.ops.linear import reference
from maskjet.ops.linear.cases import CASES, bytes_moved, tolerance_used
from maskjet.ops.linear.reference import Norm
from maskjet.ops.record import Op, Variant, describe, serves_any

Activation = Literal["none", "gelu", "relu", "silu"]
_HALVES = (torch.float16, torch.bfloat16)
_MULTIPLE = 16  # a tensor core's product takes so many at once
_MOST_NORMED = 512  # a program holds whole rows


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
    norm: Norm | None = None,
    eps: float = 1e-6,
    activation: Activation = "none",
    gives_sums: bool = False,
    implementation: Implementation = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute activation(d × (x @ weightᵀ) + bias) + residual, in float32 until it is rounded to the output.

    With a norm behind it, activation(norm(d × (x @ weightᵀ) + bias + residual)). d is 1, or with `sums` the inverse
    deviation of each row of x: a layer norm before the layer, if `fold_norm` made its weights. On a GPU it is one
    launch on the current stream, which never waits.

    Args:
        x: float16 or bfloat16 [M, K], rows may be strided; K is a multiple of 16.
        weight: Of x's type, [N, K], contiguous; N is a multiple of 16.
        bias: float32 [N].
        residual: Of x's type, [M, N], rows may be strided.
        sums: float32 [M, 2, P], contiguous: sums and sums of squares of the rows of x, in P parts.
        norm: A layer norm behind the layer, of N; N is then a power of two, at most 512.
        eps: Added to the variance of the rows of x.
        activation: "none", "gelu" (by the error function), "relu" or "silu".
        gives_sums: Whether to return sums of the output's rows, too; not with `norm`.
        implementation: "auto", "reference" or "triton".

    Returns:
        The output, of x's type [M, N], and its `sums`, of the values before they were rounded, or None.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these tensors.

    Equal to the reference within an ULP of the largest value of a row.

    Examples:
        >>> x, weight = torch.ones(2, 16, dtype=torch.float16), torch.ones(16, 16, dtype=torch.float16)
        >>> out, sums = linear(x, weight, torch.zeros(16), activation="relu", gives_sums=True)
        >>> out[0, 0].item(), sums[0, 0].sum().item()
        (16.0, 256.0)
    """
    _check(x, weight, bias)
    _check_like("residual", residual, x.dtype, (len(x), len(weight)), x.device)
    parts = sums.shape[2] if isinstance(sums, torch.Tensor) and sums.ndim == 3 else 1
    _check_like("sums", sums, torch.float32, (len(x), 2, parts), x.device)
    if norm is not None:
        _check_norm(norm, len(weight), x.device, gives_sums=gives_sums)
    if activation not in get_args(Activation):
        raise InputError(f"activation must be one of {get_args(Activation)}, got {activation!r}.")
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    out_sums = None
    if gives_sums:
        out_sums = torch.empty(len(x), 2, parts_of(len(weight)), dtype=torch.float32, device=x.device)
    run = RECORD.choose(implementation, x).run
    run(x, weight, bias, residual, sums, out, out_sums, norm=norm, activation=activation, eps=eps)
    return out, out_sums


def parts_of(outputs: int) -> int:
    """In how many parts a layer gives the sums of its rows: one per 64 columns, or as many as divide them."""
    return outputs // next(side for side in (64, 32, 16) if outputs % side == 0)


def fold_norm(
    weight: torch.Tensor, bias: torch.Tensor, norm_weight: torch.Tensor, norm_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of a linear layer [N, K] after a layer norm, for `linear` with the sums of the norm's input.

    The norm's affine goes into them, and each row loses its mean, so that the mean of an input drops out.
    """
    weight = weight.float()
    bias = bias.float() + weight @ norm_bias.float()
    weight = weight * norm_weight.float()
    return weight - weight.mean(dim=1, keepdim=True), bias


def _check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor) or x.dtype not in _HALVES or x.ndim != 2 or x.shape[1] % _MULTIPLE:
        raise InputError(f"x must be float16 or bfloat16 [M, K], K a multiple of {_MULTIPLE}, got {describe(x)}.")
    is_alike = isinstance(weight, torch.Tensor) and (weight.dtype, weight.device) == (x.dtype, x.device)
    if not is_alike or weight.ndim != 2 or weight.shape[1] != x.shape[1] or len(weight) % _MULTIPLE:
        wanted = f"{str(x.dtype).removeprefix('torch.')} [N, {x.shape[1]}] on {x.device}, N a multiple of {_MULTIPLE}"
        raise InputError(f"weight must be {wanted}, got {describe(weight)}.")
    is_alike = isinstance(bias, torch.Tensor) and (bias.dtype, bias.device) == (torch.float32, x.device)
    if not is_alike or bias.shape != (len(weight),):
        raise InputError(f"bias must be float32 [{len(weight)}] on {x.device}, got {describe(bias)}.")


def _check_norm(norm: Norm, outputs: int, device: torch.device, *, gives_sums: bool) -> None:
    if outputs & (outputs - 1) or outputs > _MOST_NORMED:
        raise InputError(f"norm needs N, a power of two up to {_MOST_NORMED}, got {outputs}.")
    if gives_sums:
        raise InputError("gives_sums must be False with norm.")
    for name in ("weight", "bias"):
        _check_like(f"norm.{name}", getattr(norm, name), torch.float32, (outputs,), device)


def _check_like(name: str, value: object, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    fits = isinstance(value, torch.Tensor) and (value.dtype, value.shape, value.device) == (dtype, shape, device)
    if value is not None and not fits:
        kind = str(dtype).removeprefix("torch.")
        raise InputError(f"{name} must be {kind} {list(shape)} on {device}, got {describe(value)}.")


RECORD = Op(
    name="linear",
    public=linear,
    variants={
        "triton": triton_variant("maskjet.ops.linear.triton", "linear", _HALVES),
        "reference": Variant(reference.linear, serves_any),
    },
    cases=CASES,
    tolerance_used=tolerance_used,
    bytes_moved=bytes_moved,
)
