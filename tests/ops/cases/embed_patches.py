"""Inputs on which every implementation of embed_patches must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.ops.cases.linear import tolerance_used
from tests.ops.cases.tolerances import bytes_of

__all__ = ["CASES", "bytes_moved", "tolerance_used"]


def _case(
    batch: int = 1,
    grid: tuple[int, int] = (3, 4),
    side: int = 4,
    windows: int = 1,
    outputs: int = 48,
    *,
    dtype: torch.dtype = torch.float16,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(batch + side + outputs)
        rows, columns = (length * windows for length in grid)
        images = torch.randn(batch, 3, rows * side, columns * side, generator=generator)
        weight = torch.randn(outputs, 3 * side**2, generator=generator) * (3 * side**2) ** -0.5
        return {
            "images": images.to(device, dtype),
            "weight": weight.to(device, dtype),
            "positions": torch.randn(rows * columns + windows**2, outputs, generator=generator).to(device),
            "windows": windows,
        }

    return build


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "some": _case(),
    "one patch": _case(grid=(1, 1)),
    "one pixel each": _case(side=1),
    "patches of 10": _case(side=10),
    "patches of 12": _case(grid=(6, 6), side=12, outputs=64),
    "patches of 16": _case(grid=(2, 2), side=16, outputs=16),
    "four windows": _case(windows=2),
    "sixteen windows": _case(grid=(1, 2), windows=4, outputs=32),
    "batch": _case(batch=3, windows=2, outputs=96),
    "no images": _case(batch=0),
    "bfloat16": _case(dtype=torch.bfloat16, windows=2),
}


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of all inputs and of the tokens."""
    tokens = len(inputs["images"]) * inputs["positions"].numel()
    return bytes_of(inputs) + int(tokens * inputs["images"].itemsize)


def flops(inputs: dict[str, Any]) -> int:
    """Two per weight and patch."""
    images, weight = inputs["images"], inputs["weight"]
    return int(2 * images.numel() // (weight.numel() // len(weight)) * weight.numel())
