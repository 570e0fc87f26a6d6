"""Inputs on which every implementation of depthwise_norm must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.ops.cases.tolerances import bytes_of, largest_share, rounding_of


def _case(
    batch: int = 1,
    size: tuple[int, int] = (5, 11),
    channels: int = 32,
    *,
    dtype: torch.dtype = torch.float16,
    eps: float = 1e-6,
    shift: float = 0.0,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(batch + sum(size) + channels)
        return {
            "image": (torch.randn(batch, *size, channels, generator=generator) + shift).to(device, dtype),
            "weight": torch.randn(9, channels, generator=generator).to(device),
            "bias": torch.randn(channels, generator=generator).to(device),
            "eps": eps,
        }

    return build


def _same_channels(device: torch.device) -> dict[str, Any]:
    """Pixels without a deviation, which only eps keeps finite."""
    return {**_case()(device), "weight": torch.zeros(9, 32, device=device), "bias": torch.ones(32, device=device)}


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "some": _case(),
    "one pixel": _case(size=(1, 1)),
    "one row": _case(size=(1, 17)),
    "one column": _case(size=(9, 1)),
    "whole tiles": _case(size=(8, 16), channels=64),
    "one more than tiles": _case(size=(9, 17)),
    "many channels": _case(size=(3, 4), channels=256),
    "batch": _case(batch=3),
    "no images": _case(batch=0),
    "many pixels": _case(batch=2, size=(129, 129), channels=16),
    "a large mean": _case(shift=30.0),
    "a large eps": _case(eps=1.0),
    "same channels": _same_channels,
    "bfloat16": _case(dtype=torch.bfloat16, batch=2),
}


def tolerance_used(_inputs: dict[str, Any], expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference over the tolerance, an ULP of a pixel's largest value."""
    return largest_share(expected, actual, rounding_of(expected, -1))


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of all inputs and of the result."""
    return bytes_of(inputs) + int(inputs["image"].numel() * inputs["image"].itemsize)
