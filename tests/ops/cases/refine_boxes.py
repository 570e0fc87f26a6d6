"""Inputs on which every implementation of refine_boxes must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.ops.cases.tolerances import ROUNDING, bytes_of, largest_of, largest_share

_BOXES = 1e-5
"""Tolerance of boxes, as a share of the largest coordinate: sums of float32 products in another order, and the
exponential of another library."""


def _case(
    count: int = 6,
    inputs: int = 32,
    *,
    dtype: torch.dtype = torch.float16,
    table: int = 0,
    offsets: int = 0,
    frequencies: int = 0,
    scale: float = 0.1,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(count + inputs + table + offsets)
        given: dict[str, Any] = {
            "hidden": torch.randn(count, inputs, generator=generator).to(device, dtype),
            "weight": (torch.randn(4, inputs, generator=generator) * scale).to(device),
            "bias": (torch.randn(4, generator=generator) * scale).to(device),
            "references": torch.rand(table or count, 4, generator=generator).to(device),
        }
        if table:
            given["rows"] = torch.randint(0, 5 * table, (count,), generator=generator).int().to(device)
        if offsets:
            given["offsets"] = (torch.randn(offsets, 4, generator=generator) * scale).to(device)
        if frequencies:
            given["frequencies"] = (6.0 / 10.0 ** torch.arange(frequencies)).to(device)
        return given

    return build


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "some": _case(),
    "one box": _case(count=1),
    "no boxes": _case(count=0, table=3),
    "an odd number": _case(count=7),
    "inputs that are no power of two": _case(inputs=48),
    "many inputs": _case(inputs=256, scale=0.02),
    "from a table": _case(table=10),
    "offsets": _case(offsets=3),
    "sines": _case(frequencies=4),
    "frequencies that are no power of two": _case(frequencies=6),
    "all at once": _case(count=10, table=7, offsets=5, frequencies=8),
    "bfloat16": _case(dtype=torch.bfloat16, frequencies=4),
}

_Output = tuple[torch.Tensor, torch.Tensor | None]


def tolerance_used(inputs: dict[str, Any], expected: _Output, actual: _Output) -> float:
    """The largest difference over the tolerance; of sines an ULP, and that of boxes times the largest frequency."""
    (boxes, waves), (others, other_waves) = expected, actual
    limit = _BOXES * largest_of(boxes)
    used = largest_share(boxes, others, limit)
    if waves is None or other_waves is None:
        return used if waves is other_waves else float("inf")
    return max(
        used, largest_share(waves, other_waves, ROUNDING[waves.dtype] + limit * float(inputs["frequencies"].max()))
    )


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of all inputs, of the boxes and of the sines."""
    count, hidden = len(inputs["hidden"]), inputs["hidden"]
    waves = 4 * len(inputs["frequencies"]) if "frequencies" in inputs else 0
    return bytes_of(inputs) + count * (16 + waves * int(hidden.itemsize))
