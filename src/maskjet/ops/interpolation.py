"""Bilinear interpolation as ATen does it on a CPU, operation by operation; shared by the CPU implementations.

Checked bit for bit with torch 2.11 to 2.15 on x86. The first product of each blend is not rounded, as the compiler
contracts it to a fused multiply-add. Source positions are rounded once or twice, depending on PyTorch's build, the
channels and whether there is a single thread; a trial run decides. Up to an output height + width of 128, ATen uses
kernels that round differently.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from maskjet.jit import Inlined

SMALL = 128
"""Up to this output height + width, in pixels, ATen uses other kernels, and the references are fast."""


class Taps(NamedTuple):
    """The two source values that each output position along one axis is blended from."""

    first: NDArray[np.int64]
    """Index of the source value before the output position."""
    second: NDArray[np.int64]
    """Index of the source value after the output position; the first again at the far border."""
    weight: NDArray[np.float32]
    """Share of the second value, 0..1."""


def taps(source: int, target: int, channels: int) -> Taps:
    """The taps that resize `source` values to `target`: half-pixel centres, clamped at the borders.

    ATen has a kernel for images of one channel, and one for several, channels-last.
    """
    return _taps(source, target, _rounds_positions_once(channels, torch.get_num_threads() == 1))


def taps_at(index: NDArray[np.int64], source: int, target: int, channels: int) -> Taps:
    """`taps` at the given target positions."""
    return _taps_at(index, source, target, _rounds_positions_once(channels, torch.get_num_threads() == 1))


def taps_from(source: int, side: float, target: int, whole: int, fraction: float) -> Taps:
    """The taps of `target` positions, offset by `whole` + `fraction`, in `side` positions that `source` values cover.

    Computed as by `paste_masks.reference.show`, which is not ATen's code.
    """
    centre = (np.arange(target) - whole).astype(np.float32) - np.float32(fraction) + np.float32(0.5)
    scale = np.float32(source) / np.float32(side)
    position = (scale * centre - np.float32(0.5)).clip(np.float32(0), np.float32(source - 1))
    first = position.astype(np.int64)
    return Taps(first, np.minimum(first + 1, source - 1), position - first.astype(np.float32))


class Triangles(NamedTuple):
    """The source values that each output position along one axis averages, with the weights of a triangle."""

    first: NDArray[np.int64]
    """Index of the first source value of each output position."""
    counts: NDArray[np.int64]
    """Number of source values of each output position."""
    weights: NDArray[np.float32]
    """Their shares, float32 [positions, largest count]; each position's add up to 1."""


@lru_cache(maxsize=16)
def triangles(source: int, target: int) -> Triangles:
    """The weights that resize `source` values to `target` with antialias, as ATen's `upsample_bilinear2d_aa`."""
    scale = np.float32(source) / np.float32(target)
    half = np.maximum(scale, np.float32(1))
    centre = scale * (np.arange(target, dtype=np.float32) + np.float32(0.5))
    first = np.maximum((centre - half + 0.5).astype(np.int64), 0)
    counts = np.minimum((centre + half + 0.5).astype(np.int64), source) - first
    weights = (first - centre).astype(np.float32)[:, None] + np.arange(counts.max(), dtype=np.float32)
    weights += np.float32(0.5)
    weights /= half
    np.maximum(
        np.subtract(1, np.abs(weights, out=weights), out=weights), 0, out=weights
    )  # in place: wide frames have many
    weights[np.arange(counts.max()) >= counts[:, None]] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    return Triangles(first, counts, weights)


@cache
def _rounds_positions_once(channels: int, _has_one_thread: bool) -> bool:
    """Whether PyTorch, at its current thread count, computes source positions with one fused rounding."""
    values = np.random.default_rng(0).random(1080, dtype=np.float32)
    images = torch.from_numpy(values).expand(1, channels, 2, -1).contiguous(memory_format=torch.channels_last)
    resized = F.interpolate(images, size=(2, 700), mode="bilinear", align_corners=False)[0, 0, 0].numpy()
    misses = []
    for is_rounded_once in (False, True):
        first, second, weight = _taps(len(values), len(resized), is_rounded_once)
        rounded = np.float64(values[second] * weight)
        expected = np.float32(np.float64(values[first]) * np.float64(np.float32(1) - weight) + rounded)
        misses.append(np.count_nonzero(expected != resized))
    return bool(misses[1] < misses[0])


@lru_cache(maxsize=64)
def _taps(source: int, target: int, is_rounded_once: bool) -> Taps:
    return _taps_at(np.arange(target), source, target, is_rounded_once)


def _taps_at(index: NDArray[np.int64], source: int, target: int, is_rounded_once: bool) -> Taps:
    if source == target:  # ATen reads the same value twice
        return Taps(index.copy(), index.copy(), np.zeros(len(index), dtype=np.float32))
    scale = np.float32(source) / np.float32(target)
    centre = index.astype(np.float32) + np.float32(0.5)
    if is_rounded_once:  # the product of two float32 is exact in float64
        position = (np.float64(scale) * centre.astype(np.float64) - 0.5).astype(np.float32)
    else:
        position = scale * centre - np.float32(0.5)
    position = np.maximum(position, np.float32(0))
    first = np.minimum(position.astype(np.int64), source - 1)
    return Taps(first, np.minimum(first + 1, source - 1), (position - first).astype(np.float32))


@Inlined
def blend(first: np.float32, second: np.float32, weight: np.float32) -> np.float32:
    """First × (1 - weight) + second × weight, the first product exact, the second rounded."""
    rounded = np.float64(second * weight)
    return np.float32(np.float64(first) * np.float64(np.float32(1) - weight) + rounded)
