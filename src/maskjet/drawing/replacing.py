"""Replace the pixels of a region by a colour, a mosaic or a blur."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.drawing.regions import Region
from maskjet.drawing.style import parse_replacement
from maskjet.jit import compiled

_CELLS = 64  # mosaic cells along an image's longer side
_SMALLEST_CELL = 4  # pixels, smallest side of a mosaic cell
_ROWS = 256  # rows of bytes whose sum fits into 16 bits
_GREY = 128.0  # colour of a mosaic without any sampled pixel


def replace(image: NDArray[np.uint8], replaced: Region, sampled: Region, replace_with: str) -> NDArray[np.uint8]:
    """Replace pixels of an image, uint8 [H, W, 3], which may be overwritten; only sampled ones have any influence.

    The result is uint8 [H, W, 3], RGB; if transparent [H, W, 4], with zeros where pixels are replaced.
    """
    if not image.size:
        return image
    replacement = parse_replacement(replace_with)
    if replacement == "transparent":
        kept = np.zeros((*replaced.shape, 4), np.uint8)
        return np.asarray(cv2.copyTo(cv2.cvtColor(image, cv2.COLOR_RGB2RGBA), 1 - replaced, kept))
    if replacement == "mosaic" or replacement == "blur":
        filling = _fill_cells(image, sampled, is_smooth=replacement == "blur")
    else:  # cv2.rectangle: np.full takes 40 times as long
        filling = np.empty_like(image)
        cv2.rectangle(filling, (0, 0), image.shape[1::-1], replacement, cv2.FILLED)
    return np.asarray(cv2.copyTo(filling, replaced, image))


def _fill_cells(image: NDArray[np.uint8], sampled: Region, *, is_smooth: bool) -> NDArray[np.uint8]:
    """Fill with the mean sampled colour per square cell, uint8 [H, W, 3]; interpolated if smooth."""
    height, width = sampled.shape
    cell = max(round(max(height, width) / _CELLS), _SMALLEST_CELL)
    sums = np.zeros((-(-height // cell), -(-width // cell), 4))
    sum_cells(image, sampled, cell, sums)
    cells = np.rint(_complete(sums)).astype(np.uint8)
    if is_smooth:
        size = cells.shape[1] * cell, cells.shape[0] * cell
        whole = cv2.resize(cv2.GaussianBlur(cells, (3, 3), 0), size, interpolation=cv2.INTER_LINEAR)
    else:  # np.repeat: cv2.resize takes four times as long
        whole = cells.repeat(cell, axis=1).repeat(cell, axis=0)
    return np.asarray(whole[:height, :width], np.uint8)


def _complete(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean colour of cells, float64 [h, w, 3], from sums of RGB and counts [h, w, 4]; empty ones from coarser."""
    height, width = sums.shape[:2]
    counts = sums[..., 3:]
    means = sums[..., :3] / np.maximum(counts, 1)
    if counts.all():
        return means
    if height == width == 1:
        return np.full((1, 1, 3), _GREY)
    even = np.pad(sums, ((0, height % 2), (0, width % 2), (0, 0)))
    halves = even.reshape(even.shape[0] // 2, 2, even.shape[1] // 2, 2, 4).sum(axis=(1, 3))
    around = cv2.resize(_complete(halves), even.shape[1::-1], interpolation=cv2.INTER_LINEAR)[:height, :width]
    return np.where(counts > 0, means, around)


@compiled("void(uint8[:, :, ::1], Array(uint8, 2, 'C', True), int64, float64[:, :, ::1])")
def sum_cells(image: NDArray[np.uint8], sampled: Region, cell: int, out: NDArray[np.float64]) -> None:
    """Sum red, green, blue and count of sampled pixels of [H, W, 3] per cell into `out`, [h, w, 4], zeroed."""
    height, width = sampled.shape
    reds, greens, blues, counts = sums = np.zeros((4, width), np.uint16)  # per column, so that loops vectorise
    for y in range(height):
        line, mask = image[y].reshape(3 * width), sampled[y]
        for x in range(width):
            taken = np.uint8(-mask[x])  # all bits set, or none
            reds[x] += line[3 * x] & taken
            greens[x] += line[3 * x + 1] & taken
            blues[x] += line[3 * x + 2] & taken
            counts[x] += mask[x]
        if y + 1 == height or (y + 1) % cell == 0 or (y + 1) % _ROWS == 0:
            for x in range(width):
                for channel in range(4):
                    out[y // cell, x // cell, channel] += sums[channel, x]
            sums[:] = 0
