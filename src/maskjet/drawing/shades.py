"""Colours of instances: a hue per class, and shades that tell neighbours apart without flicker in video.

A shade is a phase on a circle, 0..1. Around it lightness, chroma and a little of the hue go up and down, so that it has
no ends at which a slowly changing phase would have to jump.

Without tracking, nothing tells which instance of the last frame is which of this one, so the phase is a continuous
function of the boxes: it grows with the position, and neighbours of one class push their phases apart, the more the
closer they are. On 120 frames of two demo videos, 3 % of the instances change visibly (by more than 0.05 in OKLab) from
one frame to the next; by rank of confidence 18 % do, from left to right 12 %, by a grid with greedy colouring 6 %.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from maskjet.jit import compiled

_PHASES = 64  # entries of a colour table; one step is invisible
_LIGHTNESS, _LIGHTNESS_SWING = 0.74, 0.11  # OKLab lightness: mean and swing
_MOST_CHROMA, _CHROMA_SHARE, _SHARE_SWING = 0.16, 0.84, 0.16  # OKLCH; shares of the largest chroma in sRGB
_HUE_SWING = 14.0  # degrees around the hue of a class
_FIRST_HUE = 225.0  # degrees, hue of class 0
_GOLDEN_ANGLE = 137.508  # degrees between classes; multiples stay apart for any number of them

_APART = 0.25  # wanted phase difference of neighbours
_ROUNDS = 40  # relaxation steps; more change no shade visibly

_GOLDEN_SECTION = (5**0.5 - 1) / 2  # fractions of its multiples stay apart, too
_GREY = 150

_DARK, _LIGHT = (20, 24, 28), (255, 255, 255)
_MIDDLE_LUMINANCE = 0.2  # at this luminance dark and light letters contrast equally (WCAG 2)


def class_colour(class_id: int) -> tuple[int, int, int]:
    """The RGB colour of a class, always the same; instances have shades of it."""
    red, green, blue = _class_shades(class_id)[_PHASES // 4].tolist()
    return red, green, blue


def colour_instances(
    xyxy: NDArray[np.float64], class_id: NDArray[np.int32], size_hw: tuple[int, int], *, is_by_class: bool
) -> NDArray[np.uint8]:
    """Choose the colours of instances, uint8 [n, 3], RGB: shades of their classes' hues, or hues of their own."""
    groups = class_id.astype(np.int64) if is_by_class else np.zeros(len(class_id), np.int64)
    phases = np.empty(len(xyxy))
    spread_phases(np.ascontiguousarray(xyxy), groups, size_hw[0], size_hw[1], phases)
    steps = (phases * _PHASES).astype(int) % _PHASES
    tables = [_class_shades(one) for one in class_id.tolist()] if is_by_class else [_hues()] * len(steps)
    chosen = [table[step] for table, step in zip(tables, steps.tolist(), strict=True)]
    return np.array(chosen, np.uint8).reshape(-1, 3)


def colour_tracks(track_id: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The colours of instances by their tracks' ids, uint8 [n, 3], RGB: a hue each, and grey for -1."""
    phases = (track_id * _GOLDEN_SECTION) % 1
    hues = _hues()[(phases * _PHASES).astype(int) % _PHASES]
    return np.where(track_id[:, None] < 0, np.uint8(_GREY), hues)


@lru_cache(maxsize=4096)
def letters_on(colour: tuple[int, ...]) -> tuple[int, int, int]:
    """The RGB colour of letters with the higher contrast to a background."""
    linear = [(value / 255 / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4) for value in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return _DARK if luminance > _MIDDLE_LUMINANCE else _LIGHT


@lru_cache(maxsize=4096)
def _class_shades(class_id: int) -> NDArray[np.uint8]:
    """A class's colours by phase, uint8 [_PHASES, 3], RGB."""
    turn = 2 * np.pi * np.arange(_PHASES) / _PHASES
    hue = (_FIRST_HUE + _GOLDEN_ANGLE * class_id) % 360 + _HUE_SWING * np.sin(turn)
    return _to_rgb(_LIGHTNESS + _LIGHTNESS_SWING * np.cos(turn), _CHROMA_SHARE + _SHARE_SWING * np.sin(turn), hue)


@lru_cache(maxsize=1)
def _hues() -> NDArray[np.uint8]:
    """The colours of `color_by="instance"` by phase, uint8 [_PHASES, 3], RGB."""
    return _to_rgb(np.full(_PHASES, _LIGHTNESS), np.ones(_PHASES), 360 * np.arange(_PHASES) / _PHASES)


def _to_rgb(lightness: NDArray[np.float64], share: NDArray[np.float64], hue: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Convert OKLCH to sRGB, uint8 [n, 3]: chroma as a share of sRGB's most, up to _MOST_CHROMA, and hue in degrees."""
    chromas = np.linspace(0, _MOST_CHROMA, 65)[:, None]
    candidates = _to_linear(lightness, chromas, hue)  # [chromas, n, 3]
    is_shown = ((candidates > -1e-4) & (candidates < 1 + 1e-4)).all(axis=-1)
    linear = _to_linear(lightness, share * np.where(is_shown, chromas, 0).max(axis=0), hue).clip(0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(255 * encoded), np.uint8)


def _to_linear(
    lightness: NDArray[np.float64], chroma: NDArray[np.float64], hue: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Convert OKLCH, hue in degrees, to linear sRGB [..., 3]; see https://bottosson.github.io/posts/oklab/."""
    a, b = chroma * np.cos(np.deg2rad(hue)), chroma * np.sin(np.deg2rad(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short
    return np.stack([red, green, blue], axis=-1)


@compiled("void(Array(float64, 2, 'C', True), Array(int64, 1, 'C', True), int64, int64, float64[::1])")
def spread_phases(
    xyxy: NDArray[np.float64], groups: NDArray[np.int64], height: int, width: int, out: NDArray[np.float64]
) -> None:
    """Choose phases, 0..1: initialised by position, then pushed apart between neighbours of one group.

    Two boxes are neighbours up to a distance of the sum of their sides; up to half of it they get the full distance of
    phases if others leave room for it.
    """
    count = len(xyxy)
    for i in range(count):
        x, y = (xyxy[i, 0] + xyxy[i, 2]) / (2 * width), (xyxy[i, 1] + xyxy[i, 3]) / (2 * height)
        out[i] = 2 * x + y
    pairs, most = 0, 16 * count  # with more neighbours shades cannot be far enough apart
    first, second, wanted = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    for i in range(count):
        left, top, right, bottom = xyxy[i]
        side = np.sqrt(abs((right - left) * (bottom - top)))
        for j in range(i):
            if groups[i] != groups[j] or pairs == most:
                continue
            gap = max(left - xyxy[j, 2], xyxy[j, 0] - right, top - xyxy[j, 3], xyxy[j, 1] - bottom, 0.0)
            other_side = np.sqrt(abs((xyxy[j, 2] - xyxy[j, 0]) * (xyxy[j, 3] - xyxy[j, 1])))
            closeness = 1 - gap / max(side + other_side, 1.0)
            if closeness > 0:
                first[pairs], second[pairs], wanted[pairs] = i, j, _APART * min(2 * closeness, 1.0)
                pairs += 1
    push = np.empty(count)
    for _ in range(_ROUNDS):
        push[:] = 0  # applied for all pairs at once: independent of the order of detections
        for k in range(pairs):
            difference = out[first[k]] - out[second[k]]
            difference -= np.floor(difference + 0.5)
            lacking = 0.25 * max(wanted[k] - abs(difference), 0.0)
            push[first[k]] += lacking if difference >= 0 else -lacking
            push[second[k]] -= lacking if difference >= 0 else -lacking
        out += push
    out -= np.floor(out)
