"""preprocess on a CPU: each output pixel straight from its four source bytes, in one pass.

The reference first converts the whole frame to floats, 25 MB at 1080p, though an output value needs only four bytes.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.jit import compiled
from maskjet.ops.interpolation import SMALL, blend, taps
from maskjet.ops.preprocess import reference
from maskjet.ops.preprocess.region import Region

_BYTE_AS_FLOAT = np.arange(256, dtype=np.float32) / np.float32(255)


def preprocess(
    frames: torch.Tensor,
    out: torch.Tensor,
    *,
    region: Region,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    order: str,
    resample: str,
) -> None:
    """Write (resized / 255 - mean) / std of uint8 frames [N, H, W, 3] into out [N, 3, h, w]; see `ops.preprocess`."""
    if resample == "cv2" or region.height + region.width <= SMALL:  # OpenCV's own loop is faster
        reference.preprocess(frames, out, region=region, mean=mean, std=std, order=order, resample=resample)
        return
    top, left, height, width = region.box
    rows, columns = taps(frames.shape[1], height, 3), taps(frames.shape[2], width, 3)
    channels = (0, 1, 2) if order == "rgb" else (2, 1, 0)
    offsets, divisors = np.array(mean, dtype=np.float32), np.array(std, dtype=np.float32)
    inner = out[:, :, top : top + height, left : left + width]
    is_direct = out.dtype == torch.float32 and inner.is_contiguous()
    floats = inner if is_direct else torch.empty(inner.shape)
    for frame, image in zip(frames.numpy(), floats.numpy(), strict=True):
        _resize(frame, *rows, *columns, channels, offsets, divisors, _BYTE_AS_FLOAT, image)
    if inner.shape != out.shape:
        border = (np.float32(region.padding) - offsets) / divisors
        out.copy_(torch.from_numpy(border).view(1, 3, 1, 1).expand(out.shape))
    if not is_direct:
        inner.copy_(floats)


@compiled(
    "void(Array(uint8, 3, 'A', True), int64[::1], int64[::1], float32[::1], int64[::1], int64[::1], float32[::1], "
    "UniTuple(int64, 3), float32[::1], float32[::1], float32[::1], float32[:, :, ::1])"
)
def _resize(
    frame: NDArray[np.uint8],
    top: NDArray[np.int64],
    bottom: NDArray[np.int64],
    down: NDArray[np.float32],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    across: NDArray[np.float32],
    channels: tuple[int, int, int],
    mean: NDArray[np.float32],
    std: NDArray[np.float32],
    byte_as_float: NDArray[np.float32],
    image: NDArray[np.float32],
) -> None:
    height, width = len(top), len(left)
    for y in range(height):
        upper, lower, b = frame[top[y]], frame[bottom[y]], down[y]
        for channel in range(3):
            c = channels[channel]
            offset, divisor = mean[channel], std[channel]
            row = image[channel, y]
            for x in range(width):
                i, j, a = left[x], right[x], across[x]
                above = blend(byte_as_float[upper[i, c]], byte_as_float[upper[j, c]], a)
                below = blend(byte_as_float[lower[i, c]], byte_as_float[lower[j, c]], a)
                row[x] = (blend(above, below, b) - offset) / divisor
