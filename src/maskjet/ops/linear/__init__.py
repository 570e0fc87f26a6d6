"""A linear layer fused with its neighbours: a norm before or behind it, an activation and a residual."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.gpu import make_op
from maskjet.ops.linear import reference
from maskjet.ops.linear.reference import Norm
from maskjet.ops.linear.tiles import Workspace, choose_tile
from maskjet.ops.record import HALVES, check_like, describe, is_packed, is_pair, is_power, name_of

Activation = Literal["none", "gelu", "relu", "silu"]
Gives = Literal["values", "sums", "float32", "maxima"]
_MULTIPLE = 16  # sizes are multiples of it, as tensor cores multiply blocks of 16
_AROUND = 9  # pixels of a 3 × 3 kernel
_MOST_NORMED = 512  # columns; a program normalises whole rows


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    rows: torch.Tensor | None = None,
    image_hw: tuple[int, int] | None = None,
    residual: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
    residual_norm: Norm | None = None,
    residual_sums: torch.Tensor | None = None,
    norm: Norm | None = None,
    last_norm: Norm | None = None,
    eps: float = 1e-6,
    activation: Activation = "none",
    gives: Gives = "values",
    implementation: Implementation = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute activation(d × (x @ weightᵀ) + bias) + residual, in float32 until it is rounded to the output.

    With `norm`, compute last_norm(activation(norm(d × (x @ weightᵀ) + bias + residual))). d is 1, or with `sums` the
    inverse deviation of each row of x: with weights of `fold_norm` that is a layer norm before the layer.

    With `rows` the input is gathered: rows of x, or zeros. With `image_hw` it is a 3 × 3 convolution: S is 9, and the
    input has the pixels around each pixel. Otherwise a weight wider than x takes each row of x S times: weights of
    `split_terms` are as exact as float32. On a GPU it is one launch on the current stream, which never waits.

    Args:
        x: float16 or bfloat16 [any, K], rows may be strided; K is a multiple of 16.
        weight: Of x's type, [N, S × K], contiguous; N is a multiple of 16.
        bias: float32 [N].
        rows: int32 [M], contiguous: the rows of x to take, each below len(x), or -1 for zeros; not with `image_hw`.
        image_hw: Height and width of images whose pixels, row by row, are the rows of x. The weight is then
            [N, 9 × K], for the 3 × 3 pixels around each, row by row; those outside of the image are zeros.
        residual: Of x's type, [M, N], rows may be strided.
        sums: float32 [any, 2, P], contiguous: sums and sums of squares of the rows of x, each split into P partial
            sums; not with `image_hw`.
        residual_norm: A layer norm of the residual before it is added; it needs the residual's sums.
        residual_sums: float32 [M, 2, P], contiguous: `sums` of the residual's rows.
        norm: A layer norm behind the layer, of N; N is then a power of two, at most 512.
        last_norm: A layer norm behind the activation, likewise; not with `residual`, unless there is a `norm`.
        eps: Added to the variance of the rows of x.
        activation: "none", "gelu" (by the error function), "relu" or "silu".
        gives: Which results to return; see below.
        implementation: "auto", "reference" or "triton".

    Returns:
        With "values" the output, of x's type [M, N], and None. With "sums" also its `sums`, of the values before
        rounding. With "float32" the output is float32. With "maxima" it is float32 [M, P], the largest value of each of
        P blocks of columns.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these tensors.

    Equal to the reference within an ULP of the largest value of a row.

    Examples:
        >>> x, weight = torch.ones(2, 16, dtype=torch.float16), torch.ones(16, 16, dtype=torch.float16)
        >>> out, sums = linear(x, weight, torch.zeros(16), activation="relu", gives="sums")
        >>> out[0, 0].item(), sums[0, 0].sum().item()
        (16.0, 256.0)
    """
    _check(x, weight, bias)
    _check_input(x, weight, rows, image_hw)
    count, outputs = len(x) if rows is None else len(rows), len(weight)
    if residual is not None:
        check_like("residual", residual, x.dtype, (count, outputs), x.device, has_row_stride=True)
    for name, each, length in (("sums", sums, len(x)), ("residual_sums", residual_sums, count)):
        if each is not None:
            parts = each.shape[2] if isinstance(each, torch.Tensor) and each.ndim == 3 else 1
            check_like(name, each, torch.float32, (length, 2, parts), x.device)
    if sums is not None and image_hw is not None:
        raise InputError("sums must be None with image_hw.")
    if (residual_norm is None) != (residual_sums is None) or (residual_norm is not None and residual is None):
        raise InputError("residual_norm, residual_sums and residual must come together.")
    residual_norm, norm, last_norm = (
        None if norm is None else _check_norm(name, norm, outputs, x.device)
        for name, norm in (("residual_norm", residual_norm), ("norm", norm), ("last_norm", last_norm))
    )
    if last_norm is not None and residual is not None and norm is None:
        raise InputError("last_norm must be None with a residual but no norm.")
    for name, value, known in (("activation", activation, Activation), ("gives", gives, Gives)):
        if value not in get_args(known):
            raise InputError(f"{name} must be one of {get_args(known)}, got {value!r}.")
    is_whole = norm is not None or last_norm is not None
    parts = count_partials(count, weight.shape[1], outputs, x.shape[1], is_whole=is_whole)
    dtype = torch.float32 if gives in ("float32", "maxima") else x.dtype
    out = torch.empty(count, parts if gives == "maxima" else outputs, dtype=dtype, device=x.device)
    out_sums = None
    if gives == "sums":
        out_sums = torch.empty(count, 2, parts, dtype=torch.float32, device=x.device)
    RECORD.choose(implementation, x).run(
        x,
        weight,
        bias,
        out=out,
        rows=rows,
        image_hw=image_hw,
        residual=residual,
        sums=sums,
        out_sums=out_sums,
        residual_norm=residual_norm,
        residual_sums=residual_sums,
        norm=norm,
        last_norm=last_norm,
        activation=activation,
        eps=float(eps),
        gives_maxima=gives == "maxima",
        workspace=Workspace(),
    )
    return out, out_sums


def count_partials(rows: int, width: int, outputs: int, inputs: int | None = None, *, is_whole: bool = False) -> int:
    """Count the partial sums or maxima, P, that a layer returns per row: the tiles across its output.

    `width` is that of the weight, and `inputs` that of x, if it is another; with `is_whole` there is a norm behind.
    """
    return outputs // choose_tile(rows, width, outputs, inputs=inputs, is_whole=is_whole).columns


def fold_norm(
    weight: torch.Tensor, bias: torch.Tensor, norm_weight: torch.Tensor, norm_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fold a layer norm into the weights [N, K] and bias of the linear layer behind it.

    `linear` then takes the norm's input and its sums. The norm's affine goes into the weights, and each of their rows
    loses its mean, so that the mean of an input drops out.
    """
    weight = weight.float()
    bias = bias.float() + weight @ norm_bias.float()
    weight = weight * norm_weight.float()
    return weight - weight.mean(dim=1, keepdim=True), bias


def split_terms(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Split a float32 weight [N, K] into two terms of a lower precision, side by side, [N, 2 × K], for `linear`."""
    first = weight.to(dtype)
    return torch.cat((first, (weight.float() - first.float()).to(dtype)), dim=1)


def _check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor) or x.dtype not in HALVES or x.ndim != 2 or x.shape[1] % _MULTIPLE:
        raise InputError(f"x must be float16 or bfloat16 [any, K], K a multiple of {_MULTIPLE}, got {describe(x)}.")
    inputs = x.shape[1]
    is_alike = is_packed(weight, (x.dtype,), 2) and weight.device == x.device
    if not is_alike or not weight.shape[1] or weight.shape[1] % inputs or len(weight) % _MULTIPLE:
        wanted = f"{name_of(x.dtype)} [N, S × {inputs}] on {x.device}, contiguous, N a multiple of {_MULTIPLE}"
        raise InputError(f"weight must be {wanted}, got {describe(weight)}.")
    check_like("bias", bias, torch.float32, (len(weight),), x.device)


def _check_input(
    x: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor | None, image_hw: tuple[int, int] | None
) -> None:
    is_right = rows is None or (is_packed(rows, (torch.int32,), 1) and rows.device == x.device and image_hw is None)
    if not is_right:
        wanted = f"int32 [M] on {x.device}, contiguous, and None with image_hw"
        raise InputError(f"rows must be {wanted}, got {describe(rows)}.")
    if image_hw is not None:
        if not is_pair(image_hw):
            raise InputError(f"image_hw must be a height and a width, got {image_hw!r}.")
        height, width = image_hw
        if min(height, width) < 1 or len(x) % (height * width) or weight.shape[1] != _AROUND * x.shape[1]:
            raise InputError(
                f"image_hw needs x of whole images and a weight {_AROUND} times as wide, got {height} × {width}, "
                f"{describe(x)} and {describe(weight)}."
            )


def _check_norm(name: str, norm: Norm, outputs: int, device: torch.device) -> Norm:
    if name != "residual_norm" and (not is_power(outputs) or outputs > _MOST_NORMED):
        raise InputError(f"{name} needs N, a power of two up to {_MOST_NORMED}, got {outputs}.")
    for part in ("weight", "bias"):
        check_like(f"{name}.{part}", getattr(norm, part), torch.float32, (outputs,), device)
    return norm._replace(eps=float(norm.eps))


RECORD = make_op(linear, reference.linear)
