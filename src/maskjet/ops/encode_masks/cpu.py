"""encode_masks on a CPU: from mask logits straight to run lengths, without a full-size mask.

Bilinear upsampling is separable. A column of the image is the blend of two columns of logits; along it, between two
neighbouring rows of logits, the value is linear. So a column costs one blend per row of logits, not one per pixel:
where both ends of a stretch have the same sign the whole stretch is one run, and only where the sign changes are its
few pixels looked at. Columns between two columns of logits without a positive value are empty at once.

The arithmetic is that of ATen's kernel, operation by operation, so that the strings are equal byte for byte.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.coco_rle import BYTES_PER_COUNT, write_string
from maskjet.ops.encode_masks import reference
from maskjet.ops.interpolation import SMALL, blend, taps


def encode_masks(
    mask_logits: torch.Tensor, query: list[torch.Tensor], image_sizes: list[tuple[int, int]]
) -> list[list[bytes]]:
    """Encode masks of [B, Q, h, w]; see `ops.encode_masks`."""
    encoded = []
    for image, (rows, (height, width)) in enumerate(zip(query, image_sizes, strict=True)):
        distinct, place = rows.unique(return_inverse=True)
        if height + width <= SMALL:
            strings = reference.encode_masks(mask_logits[image : image + 1], [distinct], [(height, width)])[0]
        else:
            masks = mask_logits[image, distinct].float().contiguous().numpy()
            strings = _encode(masks, height, width)
        encoded.append([strings[i] for i in place.tolist()])
    return encoded


def _encode(masks: NDArray[np.float32], height: int, width: int) -> list[bytes]:
    """Counts strings of masks [n, h, w]."""
    top, bottom, down = taps(masks.shape[1], height)
    left, right, across = taps(masks.shape[2], width)
    starts = np.append(np.flatnonzero(np.diff(top, prepend=-1)), height)  # of the stretches with the same two rows
    strings = []
    for mask in masks:
        runs = _runs(mask, top, bottom, down, starts, left, right, across)
        buffer = np.empty(BYTES_PER_COUNT * len(runs), dtype=np.uint8)
        strings.append(buffer[: write_string(runs, buffer)].tobytes())
    return strings


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _runs(
    mask: NDArray[np.float32],
    top: NDArray[np.int64],
    bottom: NDArray[np.int64],
    down: NDArray[np.float32],
    starts: NDArray[np.int64],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    across: NDArray[np.float32],
) -> NDArray[np.int64]:
    """Run lengths of one mask [h, w] at the size that the taps lead to, column by column."""
    height, width = len(top), len(left)
    has_inside, low, high = _extent(mask)
    begin, end = 0, len(starts) - 1  # of the stretches that touch a row with a positive logit
    while begin < end and bottom[starts[begin]] < low:
        begin += 1
    while end > begin and top[starts[end - 1]] > high:
        end -= 1
    column = np.empty(mask.shape[0], dtype=np.float32)
    edges = np.empty(4 * (height + 2), dtype=np.int64)  # where a pixel differs from the one before it
    found, is_inside = 0, False
    for x in range(width):
        if found + height + 2 > len(edges):
            edges = np.append(edges, np.empty_like(edges))
        i, j, pixel = left[x], right[x], x * height
        is_empty = not (has_inside[i] or has_inside[j])
        if is_inside and (is_empty or starts[begin] > 0):
            edges[found], found, is_inside = pixel, found + 1, False
        if is_empty:
            continue
        for row in range(top[starts[begin]], bottom[starts[end] - 1] + 1):
            column[row] = blend(mask[row, i], mask[row, j], across[x])
        for stretch in range(begin, end):
            upper, lower = column[top[starts[stretch]]], column[bottom[starts[stretch]]]
            # One sign at both ends holds in between; infinities are looked at pixel by pixel, as 0 × infinity is NaN.
            is_uniform = (upper <= 0 and lower <= 0) or (upper > 0 and lower > 0 and upper + lower < np.inf)
            step = starts[stretch + 1] - starts[stretch] if is_uniform else 1
            for y in range(starts[stretch], starts[stretch + 1], step):
                inside = upper > 0 if is_uniform else blend(upper, lower, down[y]) > 0
                if inside != is_inside:
                    edges[found], found, is_inside = pixel + y, found + 1, inside
        if is_inside and starts[end] < height:
            edges[found], found, is_inside = pixel + starts[end], found + 1, False
    runs = np.empty(found + 1, dtype=np.int64)
    before = 0
    for edge in range(found):
        runs[edge] = edges[edge] - before
        before = edges[edge]
    runs[found] = height * width - before
    return runs


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _extent(mask: NDArray[np.float32]) -> tuple[NDArray[np.bool_], int, int]:
    """Where a mask [h, w] has positive logits: in which columns, and from which row to which (inclusive)."""
    height, width = mask.shape
    has_inside = np.zeros(width, dtype=np.bool_)
    low, high = height, -1
    for row in range(height):
        for column in range(width):
            if mask[row, column] > 0:
                has_inside[column] = True
                low, high = min(low, row), row
    return has_inside, low, high
