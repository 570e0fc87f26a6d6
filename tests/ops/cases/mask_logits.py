"""Inputs on which every implementation of mask_logits must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.ops.cases.tolerances import bytes_of, largest_share, rounding_of


def _case(
    batch: int = 1,
    queries: int = 5,
    size: tuple[int, int] = (6, 7),
    channels: int = 32,
    *,
    more: int = 16,
    dtype: torch.dtype = torch.float16,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(batch + queries + channels)
        return {
            "queries": torch.randn(batch, queries, channels + more, generator=generator).to(device, dtype),
            "pixels": torch.randn(batch, *size, channels, generator=generator).to(device, dtype),
        }

    return build


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "some": _case(),
    "one query": _case(queries=1),
    "no queries": _case(queries=0),
    "more than a tile of queries": _case(queries=130, size=(2, 3)),
    "one pixel": _case(size=(1, 1)),
    "more than a tile of pixels": _case(size=(10, 13), channels=16),
    "just the constant beside": _case(more=1),
    "many channels": _case(channels=256),
    "channels of three steps": _case(channels=48),
    "batch": _case(batch=3),
    "no images": _case(batch=0),
    "bfloat16": _case(dtype=torch.bfloat16),
}


def tolerance_used(_inputs: dict[str, Any], expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference over the tolerance, an ULP of a query's largest logit."""
    return largest_share(expected, actual, rounding_of(expected, 2, 3))


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of the inputs and of the masks."""
    queries, (_, height, width, _) = inputs["queries"], inputs["pixels"].shape
    return bytes_of(inputs) + int(queries.shape[0] * queries.shape[1] * height * width * queries.itemsize)


def flops(inputs: dict[str, Any]) -> int:
    """Two per query, pixel and channel."""
    return int(2 * inputs["queries"].shape[1] * inputs["pixels"].numel())
