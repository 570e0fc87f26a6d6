"""Inputs on which every implementation of paint must agree, pixel by pixel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.masks import coco_rle
from tests.ops.cases.paste_masks import blobs

_Draw = Callable[[NDArray[np.bool_]], object]


def _case(
    size: tuple[int, int] = (40, 150), *, masks: int = 3, draw: _Draw | None = None, **options: Any
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(sum(size) + masks)
        image = torch.randint(256, (*size, 3), dtype=torch.uint8, generator=generator)
        inside = (blobs(1, masks, size, generator)[0] > 0).numpy()
        if draw is not None:
            draw(inside)
        colours = torch.randint(256, (masks, 3), dtype=torch.uint8, generator=generator)
        return {
            "image": image.to(device),
            "masks": coco_rle.encode(inside),
            "colours": colours,
            "opacity": 108,
            "line": 2,
            **options,
        }

    return build


def _noise(share: float) -> _Draw:
    return lambda masks: np.copyto(masks, np.random.default_rng(0).random(masks.shape) < share)


def _all_but_a_pixel(masks: NDArray[np.bool_]) -> None:
    masks[:] = True
    masks[:, 7, 60] = False


def _set(*where: Any) -> _Draw:
    def draw(masks: NDArray[np.bool_]) -> None:
        masks[:] = False
        for index in where:
            masks[index] = True

    return draw


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "blobs that overlap": _case(masks=6),
    "no mask": _case(masks=0),
    "an empty mask": _case(draw=_set((1, slice(5, 9), slice(3, 80)))),
    "one pixel": _case(draw=_set((0, 20, 61), (1, 0, 0), (2, 39, 149))),
    "everything": _case(masks=1, draw=_set(...)),
    "all but a pixel": _case(masks=2, draw=_all_but_a_pixel),
    "lines and gaps of a pixel": _case(draw=_set((0, 12), (1, slice(None), slice(0, 150, 2)), (2, slice(3, 5)))),
    "runs across columns": _case(masks=1, draw=_set((0, slice(30, None), slice(4, 9)), (0, slice(7), slice(5, 10)))),
    "noise": _case(draw=_noise(0.5)),
    "sparse noise": _case((90, 70), masks=2, draw=_noise(0.02), line=3),
    "one pixel wide": _case((40, 1), masks=2, draw=_noise(0.7)),
    "one pixel high": _case((1, 200), masks=2, draw=_noise(0.7), line=1),
    "an image of a pixel": _case((1, 1), masks=2, draw=_set(...)),
    "no pixel": _case((0, 9), masks=2, draw=_set()),
    "a strip's width": _case((20, 64), line=0),
    "tint alone": _case(line=0, opacity=200),
    "outlines alone": _case(opacity=0, line=5),
    "nothing": _case(opacity=0, line=0),
    "opaque": _case(opacity=256, line=1),
    "line 1": _case((70, 130), line=1),
    "line 3": _case((70, 130), line=3),
    "line 11": _case((70, 130), line=11),
    "the widest line": _case((90, 130), masks=2, line=32),
}


def tolerance_used(_inputs: dict[str, Any], expected: torch.Tensor, actual: torch.Tensor) -> float:
    """0 if all pixels are equal, else infinite."""
    return 0.0 if torch.equal(expected, actual) else float("inf")


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of the image, read and written, and of the masks."""
    return int(2 * inputs["image"].numel() + sum(len(rle["counts"]) for rle in inputs["masks"]))
