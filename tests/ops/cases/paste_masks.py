"""Inputs on which every implementation of encode_masks must agree with paste_masks, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from maskjet.ops.canvas import Canvas, Letterbox
from maskjet.ops.paste_masks.reference import LARGEST, finite, show

_TOLERANCE = 1e-5
"""A pixel may differ where its value is this close to zero: float32 rounding of logits of magnitude 10."""
_TOLERANCE_BESIDE_INFINITY = LARGEST * 1e-6
"""`_TOLERANCE` beside a logit that is not finite."""

_Edit = Callable[[torch.Tensor], object]


def blobs(batch: int, queries: int, side: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Mask logits [B, Q, h, w] as a mask head gives them: an ellipse each, with a wavy edge and some noise."""
    height, width = side
    y = torch.linspace(0, 1, height).view(height, 1)
    x = torch.linspace(0, 1, width)
    cx, cy, rx, ry, phase = torch.rand(5, batch, queries, 1, 1, generator=generator)
    dx, dy = (x - cx) / (0.03 + 0.2 * rx), (y - cy) / (0.03 + 0.2 * ry)
    edge = 1 + 0.2 * torch.sin(3 * torch.atan2(dy, dx) + 6 * phase)
    noise = 0.3 * torch.randn(batch, queries, height, width, generator=generator)
    distance = (dx**2 + dy**2).sqrt()
    return torch.add(noise, (edge - distance).clamp(min=-4), alpha=4)


def _case(
    size: tuple[int, int] = (20, 140),
    *,
    side: tuple[int, int] = (18, 16),
    query: tuple[int, ...] = (3, 0, 2),
    edit: _Edit = torch.Tensor.size,
    dtype: torch.dtype = torch.float32,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        masks = blobs(1, 4, side, torch.Generator().manual_seed(sum(size)))
        edit(masks)
        rows = [torch.tensor(query, dtype=torch.int32, device=device)]
        return {"mask_logits": masks.to(device, dtype), "query": rows, "image_sizes": [size]}

    return build


def _batch(device: torch.device) -> dict[str, Any]:
    masks = blobs(3, 5, (18, 17), torch.Generator().manual_seed(3)).to(device)
    rows = [torch.tensor(row, dtype=torch.int64, device=device) for row in ([4, 1], [], [0, 2, 2])]
    return {"mask_logits": masks, "query": rows, "image_sizes": [(30, 131), (5, 5), (60, 29)]}


def _letterboxed(*sizes: tuple[int, int], **options: Any) -> Callable[[torch.device], dict[str, Any]]:
    """Masks of images in letterboxes: 3 logits for 4 pixels of an input of 24 × 32."""
    letterbox = Letterbox(**options)

    def build(device: torch.device) -> dict[str, Any]:
        masks = blobs(len(sizes), 4, (18, 24), torch.Generator().manual_seed(sum(sizes[0]))).to(device)
        rows = [torch.tensor([3, 0, 2, 3], dtype=torch.int32, device=device) for _ in sizes]
        canvases = [letterbox.region(size, (24, 32)).canvas(size, (24, 32)) for size in sizes]
        return {"mask_logits": masks, "query": rows, "image_sizes": [*sizes], "canvases": canvases}

    return build


def _strided(device: torch.device) -> dict[str, Any]:
    inputs = _case(side=(36, 32))(device)
    return {**inputs, "mask_logits": inputs["mask_logits"][:, :, ::2, 1::2]}


def _some_nan(masks: torch.Tensor) -> None:
    masks[:, :, 7:9, 3:12:3] = torch.nan
    masks[:, 2, 15, 13] = torch.inf
    masks[:, 2, 4, 4] = -torch.inf


def _checkerboard(masks: torch.Tensor) -> None:
    masks.fill_(-1)
    masks[..., ::2, ::2] = masks[..., 1::2, 1::2] = 1


def _last_row_only(masks: torch.Tensor) -> None:
    masks.fill_(-1)
    masks[:, :, -1] = 1


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "some": _case(),
    "no query": _case(query=()),
    "a query twice": _case(query=(1, 3, 1, 1)),
    "nothing inside": _case(edit=lambda masks: masks.fill_(-3)),
    "everything inside": _case(edit=lambda masks: masks.fill_(3)),
    "exact zeros": _case(edit=lambda masks: masks.round_()),
    "all zero": _case(edit=torch.Tensor.zero_),
    "noise": _case(edit=torch.Tensor.neg_, side=(34, 33)),
    "checkerboard": _case(edit=_checkerboard),
    "nan and infinite": _case(edit=_some_nan),
    "one logit": _case(side=(1, 1)),
    "one row of logits": _case(side=(1, 20)),
    "one pixel": _case((1, 1)),
    "one row": _case((1, 150)),
    "one column": _case((150, 1)),
    "smaller than the logits": _case((17, 140), side=(40, 200)),
    "between the pixels": _case((1, 150), edit=_last_row_only),  # no pixel lies near a positive logit
    "same size": _case((24, 30), side=(24, 30)),
    "small image": _case((31, 57)),
    "float16": _case(dtype=torch.float16),
    "bfloat16": _case(dtype=torch.bfloat16),
    "batch of sizes": _batch,
    "strided": _strided,
    "letterbox, wide": _letterboxed((40, 131)),
    "letterbox, tall": _letterboxed((163, 31)),
    "letterbox, top left": _letterboxed((163, 31), place="top-left"),
    "letterbox, small": _letterboxed((20, 31)),
    "letterbox, one logit a pixel": _letterboxed((24, 7)),
    "letterbox, one row": _letterboxed((1, 150)),
    "letterboxes of a batch": _letterboxed((40, 131), (30, 40), (133, 9)),
}


def tolerance_used(inputs: dict[str, Any], expected: Any, actual: Any) -> float:
    """0 if all masks are equal, else the largest value of a differing pixel, in tolerances."""
    used = 0.0
    for image, ((masks, is_inside), (others, others_inside)) in enumerate(zip(expected, actual, strict=True)):
        if masks.shape != others.shape or not torch.equal(others_inside, others.flatten(1).any(dim=1)):
            return float("inf")
        used = max(used, differing_share(inputs, image, masks != others))
        assert len(is_inside) == len(masks)
    return used


def differing_share(inputs: dict[str, Any], image: int, is_different: torch.Tensor) -> float:
    """The largest magnitude of value among an image's differing pixels [n, H, W], in tolerances."""
    rows, size = inputs["query"][image].long(), inputs["image_sizes"][image]
    masks = inputs["mask_logits"][image, rows].double()
    canvas = inputs["canvases"][image] if "canvases" in inputs else Canvas.of(size)
    return share_of(show(masks, size, canvas), show(largest_around(masks), size, canvas), is_different)


def largest_around(masks: torch.Tensor) -> torch.Tensor:
    """The largest magnitude among each logit [n, h, w] and its neighbours."""
    return F.max_pool2d(finite(masks).abs()[:, None], 3, stride=1, padding=1)[:, 0]


def share_of(values: torch.Tensor, magnitudes: torch.Tensor, is_different: torch.Tensor) -> float:
    """The largest magnitude among the values of differing pixels, in tolerances; 0 if none differs.

    Args:
        values: [n, H, W]; positive is inside.
        magnitudes: [n, H, W], of the logits around each pixel.
        is_different: bool [n, H, W], pixels that differ.
    """
    if not is_different.any():
        return 0.0
    is_huge = magnitudes[is_different] > _TOLERANCE_BESIDE_INFINITY
    limits = torch.where(is_huge, _TOLERANCE_BESIDE_INFINITY, _TOLERANCE)
    return float((values[is_different].abs() / limits).max())
