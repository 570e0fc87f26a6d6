"""Convert RGB pictures to NV12, the input of video encoders."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from maskjet.jit import compiled
from maskjet.sources.colours import PictureFormat

Weights = tuple[tuple[int, int, int, int], tuple[int, int, int, int], tuple[int, int, int, int]]
"""For Y, U and V each: weights of red, green, blue in 1/32768, and offset in 1/2¹⁵ for Y, 1/2¹⁷ for U, V."""
# Weights of red and blue in luma, by matrix coefficients (code points of ITU-T H.273).
_LUMA: Mapping[int, tuple[float, float]] = {
    1: (0.2126, 0.0722),
    4: (0.30, 0.11),
    5: (0.299, 0.114),
    6: (0.299, 0.114),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}


def weights_of(colours: PictureFormat) -> Weights:
    """The weights that convert RGB to a video's colours."""
    red, blue = _LUMA[colours.matrix]
    luma = np.array([red, 1 - red - blue, blue])
    differences = (np.eye(3)[2] - luma) / (1 - blue) / 2, (np.eye(3)[0] - luma) / (1 - red) / 2
    low, span, chroma_span = (0, 255, 255) if colours.is_full_range else (16, 219, 224)
    y = np.rint(luma * (span / 255 * 2**15)).astype(int).tolist()
    u, v = (np.rint(each * (chroma_span / 255 * 2**15)).astype(int).tolist() for each in differences)
    half, middle = 1 << 14, (128 << 17) + (1 << 16)
    return (*y, (low << 15) + half), (*u, middle), (*v, middle)


@compiled("void(Array(uint8, 3, 'C', True), UniTuple(UniTuple(int32, 4), 3), int64, uint8[:, ::1], uint8[:, ::1])")
def to_nv12(
    rgb: NDArray[np.uint8], weights: Weights, width: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]
) -> None:
    """Convert a picture to NV12; each chroma sample is computed from the mean of its 2 × 2 pixels.

    Overwrites `luma`, uint8 [H, at least W], and `chroma`, uint8 [H / 2, at least W] of U and V in turn. W, the width,
    and H are even; rows and columns of the picture beyond them are left out.
    """
    (y_r, y_g, y_b, y_low), (u_r, u_g, u_b, u_low), (v_r, v_g, v_b, v_low) = weights
    # Loops that the compiler vectorises: five times as fast as pixel by pixel.
    red, green, blue = np.empty(width, np.uint8), np.empty(width, np.uint8), np.empty(width, np.uint8)
    reds, greens, blues = np.empty(width, np.uint16), np.empty(width, np.uint16), np.empty(width, np.uint16)
    for y in range(len(luma)):
        row, ys, uvs = rgb[y].reshape(rgb.shape[1] * 3), luma[y], chroma[y // 2]
        for x in range(width):
            red[x], green[x], blue[x] = row[3 * x], row[3 * x + 1], row[3 * x + 2]
        for x in range(width):
            r, g, b = np.int32(red[x]), np.int32(green[x]), np.int32(blue[x])  # 32-bit products suffice
            ys[x] = np.int32(y_r * r + y_g * g + y_b * b + y_low) >> 15
        if y % 2 == 0:
            for x in range(width):
                reds[x], greens[x], blues[x] = red[x], green[x], blue[x]
            continue
        for x in range(width):
            reds[x] += red[x]
            greens[x] += green[x]
            blues[x] += blue[x]
        for x in range(width // 2):
            r = np.int32(reds[2 * x]) + np.int32(reds[2 * x + 1])
            g = np.int32(greens[2 * x]) + np.int32(greens[2 * x + 1])
            b = np.int32(blues[2 * x]) + np.int32(blues[2 * x + 1])
            u, v = np.int32(u_r * r + u_g * g + u_b * b + u_low), np.int32(v_r * r + v_g * g + v_b * b + v_low)
            uvs[2 * x], uvs[2 * x + 1] = min(u >> 17, 255), min(v >> 17, 255)  # 255.5 at most
