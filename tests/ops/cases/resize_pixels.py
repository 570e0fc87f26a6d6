"""Inputs on which every implementation of resize_pixels must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.ops.cases.tolerances import bytes_of, largest_share, rounding_of


def _case(
    source: tuple[int, int] = (5, 7),
    size: tuple[int, int] = (15, 21),
    channels: int = 32,
    *,
    batch: int = 1,
    dtype: torch.dtype = torch.float16,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(batch + sum(source) + sum(size) + channels)
        image = torch.randn(batch, *source, channels, generator=generator)
        return {"image": image.to(device, dtype), "size": size}

    return build


def _strange(device: torch.device) -> dict[str, Any]:
    """Values that are not finite, at positions that need no rounding: all implementations blend the same pixels."""
    inputs = _case((6, 5), (12, 10))(device)
    inputs["image"][0, 2, 1, 3] = torch.nan
    inputs["image"][0, 4, 3, 5] = torch.inf
    inputs["image"][0, 4, 4, 5] = -torch.inf
    return inputs


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "three times": _case(),
    "two and a half times": _case((4, 6), (10, 15)),
    "odd factors": _case((5, 7), (13, 9)),
    "down": _case((11, 9), (4, 5)),
    "up and down": _case((3, 14), (17, 6)),
    "the same size": _case((6, 9), (6, 9)),
    "from one pixel": _case((1, 1), (4, 3)),
    "to one pixel": _case((7, 6), (1, 1)),
    "one row": _case((1, 9), (1, 27)),
    "one column": _case((8, 1), (17, 1)),
    "one channel": _case((2, 3), (4, 6), channels=1),
    "many channels": _case((3, 4), (9, 12), channels=256),
    "many pixels": _case((26, 26), (78, 78), channels=16),
    "batch": _case(batch=3),
    "no images": _case(batch=0),
    "not finite": _strange,
    "bfloat16": _case(batch=2, dtype=torch.bfloat16),
}


def tolerance_used(_inputs: dict[str, Any], expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference over the tolerance, an ULP of a pixel's largest finite value.

    Source positions may be rounded once or twice. That is a share of 2⁻¹⁷ between two of a hundred pixels, which moves
    a result over a limit of rounding at most. What is not finite must be equal.
    """
    if expected.shape != actual.shape or not torch.equal(*(_without_finite(each) for each in (expected, actual))):
        return float("inf")
    expected, actual = (each.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for each in (expected, actual))
    return largest_share(expected, actual, rounding_of(expected, -1))


def _without_finite(values: torch.Tensor) -> torch.Tensor:
    """Values with zeros for all that is finite, and a number for NaN, which equals itself then."""
    return torch.where(values.isfinite(), 0.0, values.float()).nan_to_num(nan=1.0, posinf=2.0, neginf=-2.0)


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of the image and of the result."""
    image, (height, width) = inputs["image"], inputs["size"]
    return bytes_of(inputs) + int(image.shape[0] * height * width * image.shape[3] * image.itemsize)
