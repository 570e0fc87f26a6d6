"""Inputs on which every implementation of deformable_attention must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.ops.cases.tolerances import ROUNDING, bytes_of, largest_of, largest_share


def _case(
    batch: int = 1,
    queries: int = 5,
    points: int = 2,
    heads: int = 4,
    size: tuple[int, int] = (6, 7),
    *,
    dtype: torch.dtype = torch.float16,
    reach: float = 1.0,
    is_strided: bool = False,
    edit: Callable[[dict[str, torch.Tensor]], object] = len,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(batch + queries + points + heads)
        channels = heads * 16
        values = torch.randn(batch, *size, channels * (1 + is_strided), generator=generator)
        given = {
            "projections": torch.randn(batch, queries, points, 3, heads, generator=generator) * reach,
            "boxes": torch.rand(batch, queries, 4, generator=generator),
            "values": values,
        }
        edit(given)
        halves = {name: given[name].to(device, dtype) for name in ("projections", "values")}
        return {
            "projections": halves["projections"],
            "boxes": given["boxes"].to(device),
            "values": halves["values"][..., :channels],
        }

    return build


def _far(given: dict[str, torch.Tensor]) -> None:
    """Points beyond every integer."""
    given["boxes"][:, ::2] = 1e30


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "some": _case(),
    "one point": _case(points=1),
    "five points": _case(points=5),
    "one head": _case(heads=1),
    "sixteen heads": _case(heads=16, queries=3),
    "one query": _case(queries=1),
    "no queries": _case(queries=0),
    "one pixel": _case(size=(1, 1)),
    "beyond the image": _case(reach=20.0),
    "far beyond": _case(edit=_far),
    "batch": _case(batch=3),
    "no images": _case(batch=0),
    "strided values": _case(is_strided=True, batch=2),
    "bfloat16": _case(dtype=torch.bfloat16),
}


def tolerance_used(inputs: dict[str, Any], expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference over the tolerance, an ULP of the largest value.

    Positions in pixels, of float32, differ by some 2⁻¹⁸, in which a value can't change by as much.
    """
    return largest_share(expected, actual, ROUNDING[expected.dtype] * largest_of(inputs["values"]))


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of the projections, the boxes and the result, and of the values, each at most once."""
    result = inputs["boxes"].shape[:2].numel() * inputs["values"].shape[3] * inputs["values"].itemsize
    return bytes_of(inputs) + int(result)
