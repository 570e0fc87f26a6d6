"""preprocess on a CPU: each output pixel straight from its source pixels, in one pass.

The reference first converts the whole frame to floats, 25 MB at 1080p, though an output value needs only four bytes.
YUV is converted to RGB first, which takes 0.4 ms at 1080p; converting needed pixels alone was slower.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.jit import compiled
from maskjet.ops.canvas import Region
from maskjet.ops.interpolation import SMALL, Triangles, blend, taps, triangles
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
    frames = to_rgb(frames) if isinstance(frames, YUVFrames) else frames
    is_small = resample == "bilinear" and region.height + region.width <= SMALL
    if resample == "cv2" or is_small:  # OpenCV or the reference is faster here
        reference.preprocess(frames, out, region=region, mean=mean, std=std, order=order, resample=resample)
        return
    top, left, height, width = region.box
    offsets, divisors = np.array(mean, dtype=np.float32), np.array(std, dtype=np.float32)
    inner = out[:, :, top : top + height, left : left + width]
    is_direct = out.dtype == torch.float32 and inner.is_contiguous()
    floats = inner if is_direct else torch.empty(inner.shape, dtype=torch.float32, device="cpu")
    channels = (0, 1, 2) if order == "rgb" else (2, 1, 0)
    _, rows, columns, _ = frames.shape
    for frame, image in zip(frames.numpy(), floats.numpy(), strict=True):
        if resample == "antialias":
            down, across = triangles(rows, height), triangles(columns, width)
            _average(np.ascontiguousarray(frame), down, across, channels, offsets, divisors, image)
        else:
            positions = *taps(rows, height, 3), *taps(columns, width, 3)
            _resize(frame, *positions, channels, offsets, divisors, _BYTE_AS_FLOAT, image)
    if inner.shape != out.shape:
        border = (np.array(region.padding, dtype=np.float32) - offsets) / divisors
        out.copy_(torch.from_numpy(border).view(1, 3, 1, 1).expand(out.shape))
    if not is_direct:
        inner.copy_(floats)


def to_rgb(frames: YUVFrames) -> torch.Tensor:
    """`frames.to_rgb()` of frames on the CPU, in one pass."""
    images = torch.empty(*frames.luma.shape, 3, dtype=torch.uint8, device="cpu")
    planes = (frames.luma.numpy(), frames.chroma.numpy(), frames.conversion.numpy(), images.numpy())
    for luma, chroma, conversion, image in zip(*planes, strict=True):
        convert(np.ascontiguousarray(luma), np.ascontiguousarray(chroma), conversion, image)
    return images


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
    width = len(left)
    columns = np.concatenate((left, right))
    values = np.empty(2 * width, np.float32)
    rows = np.empty((2, 3, width), np.float32)  # buffer of two source rows, even and odd, blended across
    held = np.full(2, -1)
    for y in range(len(top)):
        for row in (top[y], bottom[y]):
            if held[row & 1] == row:
                continue
            held[row & 1] = row
            for channel in range(3):
                pixels, line = frame[row, :, channels[channel]], rows[row & 1, channel]
                for x in range(2 * width):
                    values[x] = byte_as_float[pixels[columns[x]]]
                for x in range(width):
                    line[x] = blend(values[x], values[width + x], across[x])
        upper, lower, b = rows[top[y] & 1], rows[bottom[y] & 1], down[y]
        for channel in range(3):
            offset, divisor, line = mean[channel], std[channel], image[channel, y]
            for x in range(width):
                line[x] = (blend(upper[channel, x], lower[channel, x], b) - offset) / divisor


_types: Any = numba.types  # numba's types lack annotations
_TRIANGLES = _types.NamedTuple((numba.int64[::1], numba.int64[::1], numba.float32[:, ::1]), Triangles)


@compiled(
    numba.void(
        *(_types.Array(numba.uint8, 3, "C", True), _TRIANGLES, _TRIANGLES, _types.UniTuple(numba.int64, 3)),
        *(numba.float32[::1], numba.float32[::1], numba.float32[:, :, ::1]),
    )
)
def _average(
    frame: NDArray[np.uint8],
    rows: Triangles,
    columns: Triangles,
    channels: tuple[int, int, int],
    mean: NDArray[np.float32],
    std: NDArray[np.float32],
    image: NDArray[np.float32],
) -> None:
    pixels = frame.reshape(len(frame), -1)
    values = np.empty(pixels.shape[1], np.float32)  # an output row at the frame's width: source rows, weighted
    for y in range(len(rows.first)):
        values[:] = 0
        for k in range(rows.counts[y]):
            weight, line = rows.weights[y, k], pixels[rows.first[y] + k]
            for x in range(len(values)):
                values[x] += weight * np.float32(line[x])
        for channel in range(3):
            line_out, offset, divisor = image[channel, y], mean[channel], std[channel]
            for x in range(len(columns.first)):
                start, total = 3 * columns.first[x] + channels[channel], np.float32(0)
                for k in range(columns.counts[x]):
                    total += columns.weights[x, k] * values[start + 3 * k]
                line_out[x] = (total / np.float32(255) - offset) / divisor


@compiled("void(Array(uint8, 2, 'C', True), Array(uint8, 3, 'C', True), Array(int32, 2, 'C', True), uint8[:, :, ::1])")
def convert(
    luma: NDArray[np.uint8], chroma: NDArray[np.uint8], conversion: NDArray[np.int32], image: NDArray[np.uint8]
) -> None:
    """Convert a frame's planes [H, W] and [ceil(H / 2), ceil(W / 2), 2] to RGB, [H, W, 3]; see `YUVFrames`."""
    height, width = luma.shape
    samples = chroma.shape[1]
    offset, scale = conversion[0]
    shifts = np.empty((3, 2 * samples), np.int16)  # chroma terms of red, green and blue, shared by two rows
    # Loops that the compiler vectorises: nine times as fast as pixel by pixel.
    us, vs, rgb = np.empty(samples, np.int32), np.empty(samples, np.int32), np.empty((3, width), np.uint8)
    for y in range(height):
        if y % 2 == 0:
            for x in range(samples):
                us[x], vs[x] = 8 * np.int32(chroma[y >> 1, x, 0]) - 1024, 8 * np.int32(chroma[y >> 1, x, 1]) - 1024
            for channel in range(3):
                (u_share, v_share), line = conversion[1 + channel], shifts[channel]
                for x in range(samples):
                    shift = np.int16((np.int32(us[x] * u_share) >> 16) + (np.int32(vs[x] * v_share) >> 16))
                    line[2 * x] = line[2 * x + 1] = shift
        ys, (reds, greens, blues), (red, green, blue) = luma[y], shifts, rgb
        low, high = np.int16(0), np.int16(255)
        for x in range(width):
            value = np.int16(np.int32((8 * np.int32(ys[x]) - offset) * scale) >> 16)
            red[x] = min(max(np.int16(value + reds[x]), low), high)
            green[x] = min(max(np.int16(value + greens[x]), low), high)
            blue[x] = min(max(np.int16(value + blues[x]), low), high)
        row = image[y].reshape(3 * width)
        for x in range(width):
            row[3 * x], row[3 * x + 1], row[3 * x + 2] = red[x], green[x], blue[x]
