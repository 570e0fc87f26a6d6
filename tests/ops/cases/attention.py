"""Inputs on which every implementation of attention must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.ops.cases.tolerances import ROUNDING, largest_of, largest_share


def _case(
    batch: int = 1,
    length: int = 40,
    heads: int = 2,
    side: int = 32,
    *,
    dtype: torch.dtype = torch.float16,
    scale: float = 0.3,
    edit: Callable[[torch.Tensor], object] = torch.Tensor.size,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(batch * 1000 + length)
        projections = torch.randn(batch, length, 3, heads, side, generator=generator)
        projections[:, :, 0] *= scale
        edit(projections)
        return {"projections": projections.to(device, dtype)}

    return build


def _one_key(projections: torch.Tensor) -> None:
    """A key that takes all the weight of every query."""
    projections[:, :, 0] = 4.0
    projections[:, 3, 1] = 9.0


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "some": _case(),
    "one token": _case(length=1),
    "a full block": _case(length=64),
    "one more than a block": _case(length=65),
    "several blocks": _case(length=150, heads=1),
    "six heads of 64": _case(length=30, heads=6, side=64),
    "heads of 16": _case(side=16),
    "heads of 128": _case(length=20, heads=1, side=128),
    "batch": _case(batch=3, length=17),
    "no images": _case(batch=0),
    "equal weights": _case(scale=0.0),
    "one key": _case(edit=_one_key),
    "bfloat16": _case(dtype=torch.bfloat16, length=70),
}


def tolerance_used(inputs: dict[str, Any], expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference over the tolerance, two ULP of the largest value: weights and results are rounded."""
    largest = largest_of(inputs["projections"][:, :, 2])
    return largest_share(expected, actual, 2 * ROUNDING[expected.dtype] * largest)


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of the projections and of the result."""
    projections = inputs["projections"]
    return int(projections.numel() * projections.itemsize * 4 // 3)


def flops(inputs: dict[str, Any]) -> int:
    """Four per query, key and channel: two of the scores, and two of the weighted values."""
    batch, length, _, heads, side = inputs["projections"].shape
    return int(4 * batch * heads * length**2 * side)
