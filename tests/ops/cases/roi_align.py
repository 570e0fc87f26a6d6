"""Inputs on which every implementation of roi_align must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_POSITION = 2.0**-23
"""Tolerance per pixel of the longest side, as a share of the largest feature: float32 rounding of a position, unless a
GPU fuses its product and sum. A sample between two features changes by that share of their difference."""
_OUTPUT = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def _case(
    batch: int = 1,
    boxes: int = 5,
    *,
    channels: int = 5,
    levels: int = 4,
    size: int = 3,
    largest: float = 500.0,
    edit: Callable[[torch.Tensor], object] = torch.Tensor.size,
    dtype: torch.dtype = torch.float32,
    is_channels_last: bool = True,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(batch * 1000 + boxes)
        features = [
            torch.randn(batch, channels, 48 >> level, 64 >> level, generator=generator) for level in range(levels)
        ]
        corner = torch.rand(batch, boxes, 2, generator=generator) * 200 - 20
        side = 4 + largest * torch.rand(batch, boxes, 1, generator=generator) ** 2
        found = torch.cat((corner, corner + side * (0.5 + torch.rand(batch, boxes, 2, generator=generator))), dim=2)
        edit(found)
        layout = torch.channels_last if is_channels_last else torch.contiguous_format
        return {
            "boxes": found.to(device),
            "features": [feature.to(device, dtype).contiguous(memory_format=layout) for feature in features],
            "scales": [0.25 / 2**level for level in range(levels)],
            "size": size,
        }

    return build


def _at_the_border(boxes: torch.Tensor) -> None:
    """Boxes in a corner, at the far border, half outside, a pixel outside, and far away."""
    boxes[0, 0] = torch.tensor([0.0, 0, 256, 192])
    boxes[0, 1] = torch.tensor([252.0, 188, 256, 192])
    boxes[0, 2] = torch.tensor([-60.0, -60, 30, 30])
    boxes[0, 3] = torch.tensor([-8.0, -8, -3.99, -3.99])
    boxes[0, 4] = torch.tensor([900.0, 900, 950, 950])


def _canonical(boxes: torch.Tensor) -> None:
    """Squares whose side is a limit between levels, or just below one."""
    sides = torch.tensor([112.0, 111.9, 224.0, 223.9, 448.0, 447.9, 56.0, 28.0, 896.0])
    boxes[..., 2:] = boxes[..., :2].round_() + sides[: boxes.shape[1], None]


def _without_area(boxes: torch.Tensor) -> None:
    boxes[:, ::2, 2] = boxes[:, ::2, 0]


def _not_numbers(boxes: torch.Tensor) -> None:
    boxes[:, ::3, 1] = torch.nan


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "four levels": _case(),
    "one level": _case(levels=1),
    "two levels": _case(levels=2),
    "box head": _case(size=7, boxes=3),
    "mask head": _case(size=14, boxes=2),
    "one bin": _case(size=1),
    "one box, one channel": _case(boxes=1, channels=1),
    "no boxes": _case(boxes=0),
    "more channels than a block": _case(boxes=2, channels=150, size=2),
    "batch": _case(batch=2, boxes=3),
    "at the border": _case(edit=_at_the_border),
    "level limits": _case(boxes=9, edit=_canonical),
    "without area": _case(edit=_without_area),
    "not numbers": _case(edit=_not_numbers),
    "small boxes": _case(largest=3.0),
    "channels first": _case(is_channels_last=False),
    "float16": _case(dtype=torch.float16),
    "bfloat16": _case(dtype=torch.bfloat16),
}


def tolerance_used(inputs: dict[str, Any], expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference over the tolerance, which scales with the largest feature; NaN counts as infinite."""
    if expected.shape != actual.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    largest = max(float(feature.abs().max()) for feature in inputs["features"])
    pixels = max(max(feature.shape[2:]) for feature in inputs["features"])
    difference = (expected.float() - actual.float()).abs().nan_to_num(nan=float("inf"))
    limit: float = largest * max(_OUTPUT[expected.dtype], pixels * _POSITION)
    return float(difference.max()) / limit


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of the output, and of the features: 4 per output value, at most all of them."""
    features, boxes = inputs["features"], inputs["boxes"]
    outputs = boxes.shape[0] * boxes.shape[1] * features[0].shape[1] * inputs["size"] ** 2
    return int(features[0].itemsize * (outputs + min(4 * outputs, sum(feature.numel() for feature in features))))
