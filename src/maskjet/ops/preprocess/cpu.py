"""preprocess on a CPU: each output pixel straight from its four source pixels, in one pass.

The reference first converts the whole frame to floats, 25 MB at 1080p, though an output value needs only four bytes.
YUV is converted for the needed pixels only, each source row once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.jit import compiled
from maskjet.ops.canvas import Region
from maskjet.ops.interpolation import SMALL, blend, taps
from maskjet.ops.preprocess import reference
from maskjet.ops.preprocess.yuv import YUVFrames

_BYTE_AS_FLOAT = np.arange(256, dtype=np.float32) / np.float32(255)


def preprocess(
    frames: torch.Tensor | YUVFrames,
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
        rgb = to_rgb(frames) if isinstance(frames, YUVFrames) else frames
        reference.preprocess(rgb, out, region=region, mean=mean, std=std, order=order, resample=resample)
        return
    top, left, height, width = region.box
    offsets, divisors = np.array(mean, dtype=np.float32), np.array(std, dtype=np.float32)
    inner = out[:, :, top : top + height, left : left + width]
    is_direct = out.dtype == torch.float32 and inner.is_contiguous()
    floats = inner if is_direct else torch.empty(inner.shape, dtype=torch.float32, device="cpu")
    channels = (0, 1, 2) if order == "rgb" else (2, 1, 0)
    if isinstance(frames, YUVFrames):
        rows, columns = taps(frames.luma.shape[1], height, 3), taps(frames.luma.shape[2], width, 3)
        for frame, image in zip(_planes(frames), floats.numpy(), strict=True):
            _resize_yuv(*frame, *rows, *columns, offsets, divisors, image)
    else:
        rows, columns = taps(frames.shape[1], height, 3), taps(frames.shape[2], width, 3)
        for frame, image in zip(frames.numpy(), floats.numpy(), strict=True):
            _resize(frame, *rows, *columns, channels, offsets, divisors, _BYTE_AS_FLOAT, image)
    if inner.shape != out.shape:
        border = (np.array(region.padding, dtype=np.float32) - offsets) / divisors
        out.copy_(torch.from_numpy(border).view(1, 3, 1, 1).expand(out.shape))
    if not is_direct:
        inner.copy_(floats)


def to_rgb(frames: YUVFrames) -> torch.Tensor:
    """`frames.to_rgb()` of frames on the CPU, in one pass."""
    images = torch.empty(*frames.luma.shape, 3, dtype=torch.uint8, device="cpu")
    for frame, image in zip(_planes(frames), images.numpy(), strict=True):
        _convert(*frame, image)
    return images


def _planes(frames: YUVFrames) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int32]]]:
    """Luma, chroma and conversion of each frame."""
    return zip(frames.luma.numpy(), frames.chroma.numpy(), frames.conversion.numpy(), strict=True)


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


@numba.njit(inline="always")
def _convert_row(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    conversion: NDArray[np.int32],
    columns: NDArray[np.int64],
    samples: NDArray[np.int32],
    rgb: NDArray[np.int32],
) -> None:
    """Convert the pixels of a row at some columns to RGB, 0..255; see `yuv`.

    Gathering samples first, and products in 32 bits, which suffice, let the compiler vectorise the conversion.
    """
    ys, us, vs = samples
    for x in range(len(columns)):
        column = columns[x]
        ys[x], us[x], vs[x] = luma[column], chroma[column >> 1, 0], chroma[column >> 1, 1]
    offset, scale = conversion[0]
    for channel in range(3):
        u_share, v_share = conversion[1 + channel]
        line = rgb[channel]
        for x in range(len(columns)):
            y = int(np.int32((8 * ys[x] - offset) * scale)) >> 16
            u = int(np.int32((8 * us[x] - 1024) * u_share)) >> 16
            v = int(np.int32((8 * vs[x] - 1024) * v_share)) >> 16
            line[x] = min(max(y + u + v, 0), 255)


@compiled(
    "void(Array(uint8, 2, 'A', True), Array(uint8, 3, 'A', True), Array(int32, 2, 'C', True), "
    "int64[::1], int64[::1], float32[::1], int64[::1], int64[::1], float32[::1], float32[::1], float32[::1], "
    "float32[:, :, ::1])"
)
def _resize_yuv(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    conversion: NDArray[np.int32],
    top: NDArray[np.int64],
    bottom: NDArray[np.int64],
    down: NDArray[np.float32],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    across: NDArray[np.float32],
    mean: NDArray[np.float32],
    std: NDArray[np.float32],
    image: NDArray[np.float32],
) -> None:
    width = len(left)
    columns = np.concatenate((left, right))
    samples, rgb = np.empty((3, 2 * width), dtype=np.int32), np.empty((3, 2 * width), dtype=np.int32)
    rows = np.empty((2, 3, 2 * width), dtype=np.float32)  # one row of even and one of odd index
    held = np.full(2, -1)
    for y in range(len(top)):
        for row in (top[y], bottom[y]):
            if held[row & 1] != row:
                held[row & 1] = row
                _convert_row(luma[row], chroma[row >> 1], conversion, columns, samples, rgb)
                for channel in range(3):
                    for x in range(2 * width):
                        rows[row & 1, channel, x] = np.float32(rgb[channel, x]) / np.float32(255)
        upper, lower, b = rows[top[y] & 1], rows[bottom[y] & 1], down[y]
        for channel in range(3):
            offset, divisor = mean[channel], std[channel]
            above_row, below_row, line = upper[channel], lower[channel], image[channel, y]
            for x in range(width):
                above = blend(above_row[x], above_row[width + x], across[x])
                below = blend(below_row[x], below_row[width + x], across[x])
                line[x] = (blend(above, below, b) - offset) / divisor


@compiled("void(Array(uint8, 2, 'A', True), Array(uint8, 3, 'A', True), Array(int32, 2, 'C', True), uint8[:, :, ::1])")
def _convert(
    luma: NDArray[np.uint8], chroma: NDArray[np.uint8], conversion: NDArray[np.int32], image: NDArray[np.uint8]
) -> None:
    columns = np.arange(luma.shape[1])
    samples, rgb = np.empty((3, len(columns)), dtype=np.int32), np.empty((3, len(columns)), dtype=np.int32)
    for y in range(luma.shape[0]):
        _convert_row(luma[y], chroma[y >> 1], conversion, columns, samples, rgb)
        for x in range(len(columns)):
            image[y, x, 0], image[y, x, 1], image[y, x, 2] = rgb[0, x], rgb[1, x], rgb[2, x]
