"""What the records of the network's ops share: how results are compared, and how bytes are counted."""

from __future__ import annotations

from typing import Any

import torch

ROUNDING = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-16}
"""Tolerance of results as a share of the largest value. Of the halves an ULP: a result is rounded to half of that, and
sums of float32 products in another order may lie on the other side of a limit. Of float32 what such sums differ by."""
_LEAST = 1e-3  # values that are smaller count as this large


def largest_share(expected: torch.Tensor, actual: torch.Tensor, limit: torch.Tensor | float) -> float:
    """The largest difference over its tolerance: infinite for NaN or another shape or type, 0 of no values."""
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        return float("inf")
    if not expected.numel():
        return 0.0
    share = (expected.float() - actual.float()).abs() / limit
    return float(share.nan_to_num(nan=torch.inf).max())


def largest_of(values: torch.Tensor) -> float:
    """The largest magnitude, 0 of no values."""
    return float(values.abs().max()) if values.numel() else 0.0


def rounding_of(expected: torch.Tensor, *dims: int) -> torch.Tensor:
    """The tolerance of results, by the largest value along some dimensions."""
    if not expected.numel():
        return torch.zeros(1)
    return ROUNDING[expected.dtype] * expected.float().abs().amax(dim=dims, keepdim=True).clamp(min=_LEAST)


def bytes_of(inputs: dict[str, Any]) -> int:
    """Bytes of all tensors among the inputs."""
    return sum(value.numel() * value.itemsize for value in inputs.values() if isinstance(value, torch.Tensor))
