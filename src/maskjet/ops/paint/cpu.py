"""paint on a CPU, without dense masks: strips of 64 columns, each row of a strip packed into a uint64.

A run of a mask flips two bits of its strip, where it begins and where it ends; a pass down the rows sets those between.
The outermost columns of a strip are its neighbours' and not painted, so that no disc around a painted pixel leaves the
strip. A row is then tinted in stretches, and only pixels near a border count the pixels inside their disc.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.jit import compiled
from maskjet.masks.coco_rle import Runs
from maskjet.ops.paint.outline import Outline

_COLUMNS = 64  # columns of a strip, one bit each
Words = NDArray[np.uint64]


def paint(image: torch.Tensor, runs: Runs, colours: torch.Tensor, *, opacity: int, outline: Outline) -> None:
    """Paint masks into [H, W, 3]; see `ops.paint`."""
    rgb = np.ascontiguousarray(colours.cpu().numpy())
    tints = np.tile((opacity * rgb.astype(np.int64) + 128).astype(np.uint16), (1, _COLUMNS))
    lines = image.numpy().reshape(len(image), -1)
    paint_strips(lines, runs.spans, runs.firsts, rgb, tints, opacity, *outline)


@compiled("int64(uint64)")
def count_bits(bits: np.uint64) -> int:
    """Count the bits set; LLVM compiles this form to one instruction where the CPU has it."""
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled("int64(uint64)")
def first_bit(bits: np.uint64) -> int:
    """Position of the lowest bit set; 64 if there is none."""
    return count_bits(~bits & (bits - np.uint64(1)))


@compiled("Tuple((int64, int64, int64))(Array(int64, 2, 'C', True), int64, int64, int64, int64, int64, uint64[::1])")
def flip_bits(
    spans: NDArray[np.int64], begin: int, end: int, left: int, right: int, height: int, rows: Words
) -> tuple[int, int, int]:
    """Flip a bit of `rows`, zeroed and one longer than the height, at the start and behind the end of each run.

    The runs are a mask's in the columns from `left` to before `right`; bit 0 is column `left`.

    Returns:
        The first span from `begin` on that ends in these columns or behind, and the first row with a pixel inside and
        the one behind the last; the height and 0 without any.
    """
    low, high = height, 0
    first, last = max(left, 0) * height, right * height
    while begin < end and spans[begin, 1] <= first:
        begin += 1
    column = max(left, 0)
    for number in range(begin, end):
        start, stop = max(spans[number, 0], first), min(spans[number, 1], last)
        if start >= last:
            break
        while start < stop:
            if start >= (column + 1) * height:
                column = start // height
            top, bottom = start - column * height, min(stop - column * height, height)
            bit = np.uint64(1) << np.uint64(column - left)
            rows[top] ^= bit
            rows[bottom] ^= bit
            low, high = min(low, top), max(high, bottom)
            start += bottom - top
    return begin, low, high


@compiled("UniTuple(uint64, 2)(uint64[::1], int64, int64, int64)")
def _neighbours(rows: Words, row: int, outwards: int, inwards: int) -> tuple[np.uint64, np.uint64]:
    """Dilation and erosion of a row's pixels by squares of `outwards` and `inwards` pixels around them, as bits."""
    around = within = rows[row]
    for k in range(1, outwards + 1):
        around |= rows[row - k] | rows[row + k]
    for k in range(1, inwards + 1):
        within &= rows[row - k] & rows[row + k]
    below, beside = around, within
    for shift in range(1, outwards + 1):
        around |= (below << np.uint64(shift)) | (below >> np.uint64(shift))
    for shift in range(1, inwards + 1):
        within &= (beside << np.uint64(shift)) & (beside >> np.uint64(shift))
    return around, within


@compiled("void(uint8[:, ::1], int64, int64, uint64, Array(uint16, 2, 'C', True), int64, int64)")
def _tint(
    lines: NDArray[np.uint8], y: int, left: int, bits: np.uint64, tints: NDArray[np.uint16], mask: int, opacity: int
) -> None:
    """Blend a tint into a row's pixels whose bits are set; bit 0 is pixel `left`."""
    while bits:
        first = first_bit(bits)
        length = first_bit(~(bits >> np.uint64(first)))
        stretch, tint = lines[y, 3 * (left + first) : 3 * (left + first + length)], tints[mask]
        for i in range(len(stretch)):
            stretch[i] = (tint[i] + (256 - opacity) * stretch[i]) >> 8
        bits &= bits + (np.uint64(1) << np.uint64(first))


@compiled(
    "void(uint8[:, ::1], int64, int64, uint64, uint64[::1], int64, Array(uint8, 2, 'C', True),"
    " int64, int64, int64, uint64[::1], Array(uint16, 1, 'C', True))"
)
def _outline(
    lines: NDArray[np.uint8],
    y: int,
    left: int,
    near: np.uint64,
    rows: Words,
    row: int,
    colours: NDArray[np.uint8],
    mask: int,
    opacity: int,
    halo: int,
    disc: Words,
    coverage: NDArray[np.uint16],
) -> None:
    """Paint a row's pixels near a mask's border: tint those inside, then blend the outline."""
    one, bits, top = np.uint64(1), rows[row], row - len(disc) // 2
    thin = bits & ~(((bits << one) | (bits >> one)) & (rows[row - 1] | rows[row + 1]))
    while near:
        at = first_bit(near)
        near &= near - one
        count, shift = 0, np.uint64(at - halo)
        for k in range(len(disc)):
            count += count_bits(rows[top + k] & (disc[k] << shift))
        tint = opacity * np.int64((bits >> np.uint64(at)) & one)  # branch-free: half of these pixels are inside
        share = 256 if (thin >> np.uint64(at)) & one else np.int64(coverage[count])
        for channel in range(3):
            pixel, colour = 3 * (left + at) + channel, np.int64(colours[mask, channel])
            value = (tint * colour + (256 - tint) * lines[y, pixel] + 128) >> 8
            lines[y, pixel] = (share * colour + (256 - share) * value + 128) >> 8


@compiled(
    "void(uint8[:, ::1], Array(int64, 2, 'C', True), Array(int64, 1, 'C', True), Array(uint8, 2, 'C', True),"
    " Array(uint16, 2, 'C', True), int64, int64, int64, Array(int64, 1, 'C', True), Array(uint16, 1, 'C', True))"
)
def paint_strips(
    lines: NDArray[np.uint8],
    spans: NDArray[np.int64],
    firsts: NDArray[np.int64],
    colours: NDArray[np.uint8],
    tints: NDArray[np.uint16],
    opacity: int,
    outwards: int,
    inwards: int,
    reaches: NDArray[np.int64],
    coverage: NDArray[np.uint16],
) -> None:
    """Paint masks into an image [H, 3 W], strip by strip, so that a strip's pixels stay in the cache for all masks."""
    height, width = len(lines), lines.shape[1] // 3
    reach = max(outwards, inwards)
    halo = max(len(reaches) // 2, reach)
    kept_columns = _COLUMNS - 2 * halo
    begins = firsts[:-1].copy()
    rows = np.zeros(height + 2 * halo + 1, np.uint64)
    none = np.uint64(0)
    disc = np.empty(len(reaches), np.uint64)  # rows of the disc, as bits, centred on the first painted column
    for k in range(len(reaches)):
        disc[k] = (~none >> np.uint64(63 - 2 * reaches[k])) << np.uint64(halo - reaches[k])
    for x in range(0, width, kept_columns):
        left, right = x - halo, min(x - halo + _COLUMNS, width)
        kept = (~none >> np.uint64(_COLUMNS - min(kept_columns, width - x))) << np.uint64(halo)
        for mask in range(len(colours) - 1, -1, -1):
            begins[mask], low, high = flip_bits(spans, begins[mask], firsts[mask + 1], left, right, height, rows[halo:])
            bits, until = none, -1  # last row affected by the rows with pixels inside so far
            for y in range(low - halo, min(high + reach, height)):
                if y + halo <= high:
                    bits ^= rows[y + 2 * halo]
                    rows[y + 2 * halo] = bits
                    if bits:
                        until = y + halo + reach
                if y < 0 or y > until:
                    continue
                row = y + halo
                around, within = _neighbours(rows, row, outwards, inwards)
                tinted, near = rows[row] & within & kept, around & ~within & kept
                if opacity and tinted:
                    _tint(lines, y, left, tinted, tints, mask, opacity)
                if near:
                    _outline(lines, y, left, near, rows, row, colours, mask, opacity, halo, disc, coverage)
            rows[low + halo : high + halo + 1] = none
