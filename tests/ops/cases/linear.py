"""Inputs on which every implementation of linear must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from maskjet.ops.linear.reference import Norm
from tests.ops.cases.tolerances import bytes_of, largest_share, rounding_of

_SUMS = 1e-4
"""Tolerance of sums, as a share of the sum of magnitudes: float32 additions in another order."""


def _case(
    rows: int = 40,
    inputs: int = 64,
    outputs: int = 96,
    *,
    dtype: torch.dtype = torch.float16,
    has_norm: bool = False,
    has_residual: bool = False,
    has_residual_norm: bool = False,
    has_norm_behind: bool = False,
    has_last_norm: bool = False,
    segments: int = 1,
    gathered: int = 0,
    image_hw: tuple[int, int] | None = None,
    is_strided: bool = False,
    **options: Any,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(rows + inputs + outputs)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        # Strided rows are every other part of rows twice as long.
        x, residual = (draw(rows, side * (1 + is_strided)).to(device, dtype)[:, :side] for side in (inputs, outputs))
        weight = draw(outputs, segments * inputs) * (segments * inputs) ** -0.5
        given: dict[str, Any] = {
            "x": x,
            "weight": weight.to(device, dtype),
            "bias": draw(outputs).to(device),
            **options,
        }
        if has_norm:
            parts = x.float().reshape(rows, 2, -1)
            given["sums"] = torch.stack((parts.sum(dim=2), parts.square().sum(dim=2)), dim=1)
        if gathered:
            given["rows"] = torch.randint(-1, rows, (gathered,), generator=generator).int().to(device)
            residual = draw(gathered, outputs).to(device, dtype)
        if image_hw is not None:
            given["image_hw"] = image_hw
        if has_residual:
            given["residual"] = residual
        if has_residual_norm:
            given["residual_norm"] = Norm(draw(outputs).to(device), draw(outputs).to(device), 1e-5)
            parts = residual.float().reshape(len(residual), 2, -1)
            given["residual_sums"] = torch.stack((parts.sum(dim=2), parts.square().sum(dim=2)), dim=1)
        if has_norm_behind:
            given["norm"] = Norm(draw(outputs).to(device), draw(outputs).to(device), 1e-5)
        if has_last_norm:
            given["last_norm"] = Norm(draw(outputs).to(device), draw(outputs).to(device), 1e-5)
        return given

    return build


def _same_rows(device: torch.device) -> dict[str, Any]:
    """Rows without a deviation, which only eps keeps finite."""
    given = _case(has_norm=True)(device)
    x = torch.ones_like(given["x"])
    count = torch.full((len(x), 1), float(x.shape[1]), device=device)
    return {**given, "x": x, "sums": torch.stack((count, count), dim=1)}


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "plain": _case(),
    "one row": _case(rows=1),
    "no rows": _case(rows=0),
    "one tensor core": _case(rows=16, inputs=16, outputs=16),
    "many rows": _case(rows=150, outputs=48),
    "gelu": _case(activation="gelu"),
    "relu": _case(activation="relu"),
    "silu": _case(activation="silu"),
    "residual": _case(has_residual=True),
    "norm": _case(has_norm=True),
    "norm, gelu": _case(rows=70, has_norm=True, activation="gelu", outputs=64),
    "same rows": _same_rows,
    "residual, sums": _case(has_residual=True, gives="sums"),
    "norm of the residual": _case(has_residual=True, has_residual_norm=True, gives="sums"),
    "norm of the residual, gathered": _case(
        rows=33, gathered=50, outputs=128, has_residual=True, has_residual_norm=True, has_norm_behind=True
    ),
    "norm of the residual, shared sums": _case(
        inputs=1024, outputs=64, has_norm=True, has_residual=True, has_residual_norm=True, dtype=torch.bfloat16
    ),
    "all at once": _case(rows=33, has_norm=True, has_residual=True, gives="sums", activation="silu", outputs=128),
    "norm behind": _case(outputs=64, has_norm_behind=True),
    "residual, norm behind, silu": _case(outputs=256, has_residual=True, has_norm_behind=True, activation="silu"),
    "norms on both sides": _case(rows=33, outputs=128, has_norm=True, has_norm_behind=True, dtype=torch.bfloat16),
    "norm behind, sums": _case(outputs=64, has_norm_behind=True, gives="sums"),
    "three norms": _case(
        outputs=64, has_norm=True, has_norm_behind=True, has_last_norm=True, has_residual=True, activation="silu"
    ),
    "last norm": _case(outputs=32, has_last_norm=True, activation="relu"),
    "gathered": _case(gathered=70, has_norm=True, has_residual=True),
    "gathered, one": _case(gathered=1, activation="relu"),
    "gathered twice, strided, bfloat16": _case(segments=2, gathered=20, is_strided=True, dtype=torch.bfloat16),
    "convolution": _case(
        rows=60, segments=9, image_hw=(5, 6), outputs=32, has_norm_behind=True, has_residual=True, activation="silu"
    ),
    "convolution of one pixel": _case(rows=1, segments=9, image_hw=(1, 1), outputs=16),
    "convolution of columns, strided": _case(rows=40, segments=9, image_hw=(20, 1), is_strided=True),
    "convolution of rows, bfloat16": _case(rows=40, segments=9, image_hw=(1, 20), dtype=torch.bfloat16),
    "two terms": _case(segments=2, gives="float32"),
    "norm, two terms": _case(segments=2, has_norm=True, gives="float32"),
    "maxima": _case(segments=2, gives="maxima"),
    "maxima of the last": _case(rows=3, outputs=48, gives="maxima", dtype=torch.bfloat16),
    "shared sums": _case(inputs=1024, outputs=64, activation="gelu", has_residual=True, gives="sums"),
    "shared sums, norm": _case(rows=20, inputs=2048, outputs=128, has_norm_behind=True, has_residual=True),
    "shared sums of a convolution": _case(
        rows=50, segments=9, image_hw=(5, 10), inputs=128, outputs=64, has_norm_behind=True
    ),
    "strided rows": _case(is_strided=True, has_residual=True),
    "bfloat16": _case(dtype=torch.bfloat16, has_norm=True, has_residual=True, gives="sums"),
}


def tolerance_used(
    _inputs: dict[str, Any],
    expected: tuple[torch.Tensor, torch.Tensor | None],
    actual: tuple[torch.Tensor, torch.Tensor | None],
) -> float:
    """The largest difference over the tolerance of the output, an ULP of a row's largest value, or of its sums."""
    (values, sums), (others, other_sums) = expected, actual
    used = largest_share(values, others, rounding_of(values, 1))
    if sums is None or other_sums is None:
        return used if sums is other_sums else float("inf")
    values = values.float()
    most = torch.stack((values.abs().sum(dim=1), values.square().sum(dim=1)), dim=1).clamp(min=1e-3)
    return max(used, largest_share(sums.sum(dim=2), other_sums.sum(dim=2), _SUMS * most))


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of all inputs and of the output."""
    rows, outputs = len(inputs["rows"]) if "rows" in inputs else len(inputs["x"]), len(inputs["weight"])
    return bytes_of(inputs) + rows * outputs * int(inputs["x"].itemsize)


def flops(inputs: dict[str, Any]) -> int:
    """Two per weight and row."""
    rows = inputs.get("rows")
    return 2 * len(inputs["x"] if rows is None else rows) * int(inputs["weight"].numel())
