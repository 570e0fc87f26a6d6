"""Pictures of single detections, cut out of their image."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maskjet.masks import coco_rle

Shape = Literal["tight", "square"]
Background = Literal["keep", "transparent"]


def cut(
    image: NDArray[np.uint8], xyxy: NDArray[np.float32], rles: list[dict[str, Any]] | None, shape: Shape
) -> Iterator[NDArray[np.uint8]]:
    """Cut boxes, float32 [n, 4] in pixels, out of uint8 [H, W, 3]; with masks, RGBA; see `Detections.crops`."""
    height, width = image.shape[:2]
    for i, box in enumerate(xyxy.tolist()):
        left, right = _widen(box[0], box[2], width)
        top, bottom = _widen(box[1], box[3], height)
        if shape == "square":
            side = max(right - left, bottom - top)
            left, top = center(left, right, side, width), center(top, bottom, side, height)
            right, bottom = left + side, top + side
        rows, columns = slice(max(top, 0), bottom), slice(max(left, 0), right)
        inside = image[rows, columns]
        if rles is not None:
            inside = np.dstack([inside, 255 * coco_rle.decode(rles[i])[rows, columns].view(np.uint8)])
        crop = np.zeros((bottom - top, right - left, inside.shape[2]), np.uint8)
        y, x = max(-top, 0), max(-left, 0)
        crop[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
        yield crop


def _widen(start: float, end: float, size: int) -> tuple[int, int]:
    """Round an interval outwards to whole pixels within 0..size, at least one pixel."""
    first = min(max(math.floor(start), 0), size - 1)
    return first, min(max(math.ceil(end), first + 1), size)


def center(start: float, end: float, side: int, size: int) -> int:
    """Start of an interval of length `side` with the same centre, moved into 0..size if it fits."""
    moved = min(max(int(start + end - side) // 2, 0), size - side)
    return moved if side <= size else (size - side) // 2
