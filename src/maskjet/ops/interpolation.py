"""Bilinear interpolation as ATen does it on a CPU, operation by operation; shared by the CPU implementations.

Seen with torch 2.11 to 2.15 on x86, bit for bit: source positions are rounded twice, and of each blend the first
product is not rounded (the compiler contracts it to a fused multiply-add). Up to an output height + width of 128, and
with a single thread, ATen takes kernels that round otherwise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

SMALL = 128
"""Output height + width up to which the rules below don't hold; the references are quick there."""


class Taps(NamedTuple):
    """What each output position along one axis is blended from."""

    first: NDArray[np.int64]
    """Index of the source value before it."""
    second: NDArray[np.int64]
    """Index of the source value after it; the first again at the far border."""
    weight: NDArray[np.float32]
    """Share of the second, 0..1."""


@lru_cache(maxsize=64)
def taps(source: int, target: int) -> Taps:
    """The taps that resize `source` values to `target`: half-pixel centres, clamped at the borders."""
    if source == target:  # ATen reads the same value twice, which shows where it is infinite: infinity × 0 is NaN
        same = np.arange(source)
        return Taps(same, same, np.zeros(source, dtype=np.float32))
    scale = np.float32(source) / np.float32(target)
    position = scale * (np.arange(target, dtype=np.float32) + np.float32(0.5)) - np.float32(0.5)
    position = np.maximum(position, np.float32(0))
    first = np.minimum(position.astype(np.int64), source - 1)
    return Taps(first, np.minimum(first + 1, source - 1), (position - first).astype(np.float32))


@numba.njit(inline="always")
def blend(first: np.float32, second: np.float32, weight: np.float32) -> np.float32:
    """First × (1 - weight) + second × weight, the first product exact, the second rounded."""
    rounded = np.float64(second * weight)
    return np.float32(np.float64(first) * np.float64(np.float32(1) - weight) + rounded)
