"""encode_masks on a CPU: from mask logits straight to run lengths, without a full-size mask.

Bilinear upsampling is separable. A column of the image is the blend of two columns of logits; along it the value is
linear in each stretch between two neighbouring rows of logits. So a column costs one blend per row of logits, not one
per pixel. A stretch whose ends have the same sign is one run; otherwise its sign changes once, near the zero of the
line through its ends. A column between two columns of logits without a positive value is empty.

The arithmetic follows ATen's kernel operation by operation, so that the strings equal the reference's byte for byte.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.jit import Ints, compiled
from maskjet.masks.coco_rle import BYTES_PER_COUNT, write_string
from maskjet.ops.canvas import Canvas
from maskjet.ops.encode_masks.reference import encode_dense
from maskjet.ops.interpolation import SMALL, Taps, blend, taps, taps_at, taps_from
from maskjet.ops.paste_masks.reference import LARGEST, finite, show
from maskjet.ops.selection import MaskQueries, SizeTable

Floats = NDArray[np.float32]


def encode_masks(mask_logits: torch.Tensor, queries: MaskQueries, sizes: SizeTable) -> list[list[bytes]]:
    """Encode masks of [B, Q, h, w]; see `ops.encode_masks`."""
    encoded = []
    for image, (rows, (height, width), canvas) in enumerate(zip(queries.rows(), sizes.hw, sizes.canvases, strict=True)):
        if queries.boxes is not None:
            boxes = queries.boxes[image, : len(rows)].tolist()
            encoded.append(_encode_in_boxes(mask_logits[image].detach(), rows, boxes, height, width))
            continue
        distinct, place = torch.unique(rows, return_inverse=True)
        if height + width <= SMALL:
            strings = encode_dense(show(mask_logits[image, distinct].float(), (height, width), canvas) > 0)
        else:
            strings = _encode(mask_logits[image].detach(), distinct, (height, width), canvas)
        encoded.append([strings[i] for i in place.tolist()])
    return encoded


def _encode(mask_logits: torch.Tensor, rows: torch.Tensor, size_hw: tuple[int, int], canvas: Canvas) -> list[bytes]:
    """COCO strings of selected masks [Q, h, w] that cover a canvas around the image."""
    if canvas == Canvas.of(size_hw):
        down, across = (taps(source, side, 1) for source, side in zip(mask_logits.shape[1:], size_hw, strict=True))
    else:
        left, beyond_left, top, beyond_top, width, height = canvas.split
        down = taps_from(mask_logits.shape[1], height, size_hw[0], top, beyond_top)
        across = taps_from(mask_logits.shape[2], width, size_hw[1], left, beyond_left)
    # One at a time: a large tensor would wake PyTorch's threads, which takes 5 ms on a busy machine.
    return [_encode_one(mask_logits[row], down, across) for row in rows.tolist()]


def _encode_in_boxes(
    mask_logits: torch.Tensor, rows: torch.Tensor, boxes: list[list[int]], height: int, width: int
) -> list[bytes]:
    """COCO strings of selected masks [Q, h, w], each resized to its box."""
    _, rows_of_logits, columns_of_logits = mask_logits.shape
    strings = []
    for row, (left, top, box_width, box_height) in zip(rows.tolist(), boxes, strict=True):
        if box_width < 1 or box_height < 1:
            strings.append(_to_string(np.array([height * width])))
            continue
        down = _place(rows_of_logits, box_height, top, height)
        across = _place(columns_of_logits, box_width, left, width)
        strings.append(_encode_one(mask_logits[row], down, across))
    return strings


def _place(source: int, side: int, offset: int, target: int) -> Taps:
    """Interpolation taps of `target` image positions, for a mask in a box of `side` pixels at `offset`.

    Positions beyond the box take the mask's first or last value. Only the image's positions are computed, since a box
    may be far larger.
    """
    index = np.arange(target) - offset
    first, second, weight = taps_at(index.clip(0, side - 1), source, side, 1)
    is_before, is_behind = index < 0, index >= side
    second[is_before] = 0 if first[0] else second[0]  # continues the stretch at the box's first pixel
    first[is_before], weight[is_before] = 0, 0
    first[is_behind] = second[is_behind] = source - 1
    return Taps(first, second, weight)


def _encode_one(mask_logits: torch.Tensor, down: Taps, across: Taps) -> bytes:
    """COCO string of a mask [h, w], upsampled by interpolation taps."""
    mask = mask_logits.float().contiguous()
    if not np.abs(mask.numpy()).max() <= LARGEST:  # too large, or NaN
        mask = finite(mask)
    return _to_string(_find_runs(mask.numpy(), *down, *across))


def _to_string(runs: Ints) -> bytes:
    buffer = np.empty(BYTES_PER_COUNT * len(runs), dtype=np.uint8)
    return buffer[: write_string(runs, buffer)].tobytes()


@compiled("Tuple((boolean[::1], int64, int64))(float32[:, ::1])")
def _extent(mask: Floats) -> tuple[NDArray[np.bool_], int, int]:
    """Columns of a mask [h, w] with a positive logit, and the first and last such row."""
    height, width = mask.shape
    has_inside = np.zeros(width, dtype=np.bool_)
    low, high = height, -1
    for row in range(height):
        for column in range(width):
            if mask[row, column] > 0:
                has_inside[column] = True
                low, high = min(low, row), row
    return has_inside, low, high


@compiled("int64(float32, float32, float32[::1], int64, int64)")
def _find_crossing(upper: np.float32, lower: np.float32, down: Floats, first: int, last: int) -> int:
    """Find the first pixel in `first`..`last` - 1 on the same side as `lower`; `last` if there is none.

    `upper` and `lower` must be finite, and one of them inside. Both terms of the blend then grow or shrink together
    with the weight, in floating point too. So the side changes at most once, near the zero of the line through them.
    """
    is_lower_inside = lower > 0
    zero, step = upper / (upper - lower), down[last - 1] - down[first]
    crossing = first
    if step > 0:
        crossing = min(max(first + int((zero - down[first]) / step * (last - 1 - first)), first), last)
    while crossing > first and (blend(upper, lower, down[crossing - 1]) > 0) == is_lower_inside:
        crossing -= 1
    while crossing < last and (blend(upper, lower, down[crossing]) > 0) != is_lower_inside:
        crossing += 1
    return crossing


@compiled("int64(int64[::1], int64, int64, boolean)")
def _mark(edges: Ints, found: int, pixel: int, is_inside: bool | np.bool_) -> int:
    """Append an edge at a pixel whose predecessor is on the other side; returns the number of edges.

    After an odd number of edges pixels are inside.
    """
    edges[found] = pixel
    return found + ((found % 2 == 1) != is_inside)


@compiled("int64[::1](int64[::1], int64)")
def _lengths(edges: Ints, pixels: int) -> Ints:
    """Lengths of the runs between edges, from the first pixel to the last."""
    runs = np.empty(len(edges) + 1, dtype=np.int64)
    before = 0
    for number, edge in enumerate(edges):
        runs[number] = edge - before
        before = edge
    runs[len(edges)] = pixels - before
    return runs


@compiled("int64[::1](float32[:, ::1], int64[::1], int64[::1], float32[::1], int64[::1], int64[::1], float32[::1])")
def _find_runs(mask: Floats, top: Ints, bottom: Ints, down: Floats, left: Ints, right: Ints, across: Floats) -> Ints:
    """Run lengths of a mask [h, w] upsampled by the taps, column by column."""
    height, width = len(top), len(left)
    has_inside, low, high = _extent(mask)
    # The first pixel of each stretch, which is blended from two rows; found here, as NumPy's own calls take longer.
    starts = np.append(np.flatnonzero(np.diff(np.append(np.int64(-1), top))), height)
    begin, end = 0, len(starts) - 1  # stretches that touch a row with a positive logit
    while begin < end and bottom[starts[begin]] < low:
        begin += 1
    while end > begin and top[starts[end - 1]] > high:
        end -= 1
    column = np.empty(mask.shape[0], dtype=np.float32)
    edges = np.empty(4 * (height + 2), dtype=np.int64)  # pixels that differ from the one before them
    found = 0
    for x in range(width if begin < end else 0):
        if found + height + 2 > len(edges):
            edges = np.append(edges, np.empty_like(edges))
        i, j, pixel = left[x], right[x], x * height
        is_empty = not (has_inside[i] or has_inside[j])
        if is_empty or starts[begin] > 0:
            found = _mark(edges, found, pixel, False)
        if is_empty:
            continue
        for row in range(top[starts[begin]], bottom[starts[end - 1]] + 1):
            column[row] = blend(mask[row, i], mask[row, j], across[x])
        for stretch in range(begin, end):
            first, last = starts[stretch], starts[stretch + 1]
            upper, lower = column[top[first]], column[bottom[first]]
            crossing = last if (upper > 0) == (lower > 0) else _find_crossing(upper, lower, down, first, last)
            if crossing > first:
                found = _mark(edges, found, pixel + first, upper > 0)
            if crossing < last:
                found = _mark(edges, found, pixel + crossing, lower > 0)
        if starts[end] < height:
            found = _mark(edges, found, pixel + starts[end], False)
    return _lengths(edges[:found], height * width)
