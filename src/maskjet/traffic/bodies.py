"""Bodies of instances, built from boxes: car, truck, bus, motorcycle, person.

A body is a list of faces, each a quadrilateral with a colour. Details (windows, lights, wheels) are faces that lie on
another one and are drawn right after it. Local axes in metres: x to the right, y forward, z up; the origin is on the
ground.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

CLASSES = ("car", "truck", "bus", "motorcycle", "person")
"""Class names by class id."""

Colour = tuple[float, float, float]
"""RGB, 0..255."""


def palette(colours: str) -> tuple[Colour, ...]:
    """Parse colours written as on the web, "ced0d4 ecece8"."""
    return tuple((red, green, blue) for red, green, blue in map(bytes.fromhex, colours.split()))


_GLASS: Colour = (52, 64, 76)
_TYRE: Colour = (30, 30, 32)
_HUB: Colour = (128, 130, 134)
_HEADLIGHT: Colour = (250, 244, 214)
_TAILLIGHT: Colour = (196, 30, 34)
_TRIM: Colour = (46, 48, 52)
_SKIN = palette("ecbc9c c68e68 7e543c")
_PAINT = palette("ced0d4 ecece8 2c2e34 767a80 a81c24 1e4284 18625c ce9e30 5c3a2c 3c683c")
_BUS_PAINT = palette("d6aa28 b2222c e8e8e4 246ea0 34864a")
_CARGO = palette("e2e2de bcbec2 345c94 b0402c cec4a8")
_CLOTHES = palette("c4343c 283c6e eceae4 222428 56845c deac46 82568c 626c78")

# Corners of a box's faces in units of its half sizes, ordered so that u points right and v up when the face is seen
# from outside.
_SIDES = {
    "front": ((1, 1, -1), (-1, 1, -1), (-1, 1, 1), (1, 1, 1)),
    "back": ((-1, -1, -1), (1, -1, -1), (1, -1, 1), (-1, -1, 1)),
    "left": ((-1, 1, -1), (-1, -1, -1), (-1, -1, 1), (-1, 1, 1)),
    "right": ((1, -1, -1), (1, 1, -1), (1, 1, 1), (1, -1, 1)),
    "top": ((-1, -1, 1), (1, -1, 1), (1, 1, 1), (-1, 1, 1)),
}
_CORNERS = np.array(list(_SIDES.values()), dtype=np.float64)
_IS_TOP = _CORNERS[..., 2] > 0
_OCTAGON = ((-1.0, 0.42), (-0.42, 1.0), (0.42, 1.0), (1.0, 0.42))  # heights and half widths


@dataclass(frozen=True)
class Body:
    """The faces of one instance."""

    corners: NDArray[np.float64]
    """float64 [F, 4, 3]: corners of each face, in metres."""
    normals: NDArray[np.float64]
    """float64 [F, 3]: outward unit normals; a detail has its face's."""
    colours: NDArray[np.float64]
    """float64 [F, 3]: RGB, 0..255, before lighting."""
    carrier: NDArray[np.int64]
    """int64 [F]: index of the face that a detail lies on; other faces have their own index."""
    footprint: tuple[float, float, float]
    """(width, length, height) in metres of the box that casts the shadow."""


class Builder:
    """Collects boxes and details; `build` computes their geometry all at once."""

    def __init__(self) -> None:
        self._boxes: list[tuple[float, ...]] = []
        self._details: list[tuple[float, ...]] = []
        self._box_colours: list[Colour] = []
        self._detail_colours: list[Colour] = []

    def box(
        self,
        size: tuple[float, float, float],
        at: tuple[float, float, float],
        colour: Colour,
        *,
        top_scale: tuple[float, float] = (1.0, 1.0),
        top_shift: float = 0.0,
        faces: dict[str, Colour] | None = None,
    ) -> dict[str, int]:
        """Add a box, optionally narrower and shifted along y at the top; returns its faces' indices by side."""
        first = len(self._box_colours)
        self._boxes.append((*size, *at, *top_scale, top_shift))
        self._box_colours += [(faces or {}).get(side, colour) for side in _SIDES]
        return {side: first + number for number, side in enumerate(_SIDES)}

    def detail(self, face: int, u: tuple[float, float], v: tuple[float, float], colour: Colour) -> None:
        """Add a rectangle on a box's face; u and v are its extents in 0..1 of the face."""
        self._add_detail(face, (u[0], u[1], u[1], u[0]), (v[0], v[0], v[1], v[1]), colour)

    def wheels(self, faces: dict[str, int], places: Sequence[float], *, width: float, v: tuple[float, float]) -> None:
        """Add round wheels to both sides of a box, at `places` along it; a v below 0 reaches under the box."""
        for side in ("left", "right"):
            for place in places:
                centre = place if side == "right" else 1 - place, (v[0] + v[1]) / 2
                self._disc(faces[side], centre, (width / 2, (v[1] - v[0]) / 2), _TYRE)
                self._disc(faces[side], centre, (width / 4, (v[1] - v[0]) / 4), _HUB)

    def _disc(self, face: int, centre: tuple[float, float], radius: tuple[float, float], colour: Colour) -> None:
        """Add an octagon, as three trapezia."""
        (u, v), (a, b) = centre, radius
        for (low, low_width), (high, high_width) in pairwise(_OCTAGON):
            us = u - a * low_width, u + a * low_width, u + a * high_width, u - a * high_width
            self._add_detail(face, us, (v + b * low, v + b * low, v + b * high, v + b * high), colour)

    def _add_detail(self, face: int, us: Sequence[float], vs: Sequence[float], colour: Colour) -> None:
        self._details.append((face, *us, *vs))
        self._detail_colours.append(colour)

    def build(self, footprint: tuple[float, float, float]) -> Body:
        """Build the body's arrays: the boxes' faces, then the details."""
        corners = _box_corners(np.array(self._boxes))
        details = np.array(self._details).reshape(-1, 9)
        carrier = details[:, 0].astype(np.int64)
        s, t = details[:, 1:5], details[:, 5:]
        weights = np.stack([(1 - s) * (1 - t), s * (1 - t), s * t, (1 - s) * t], axis=-1)
        right, up = corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0]
        normals = right[:, (1, 2, 0)] * up[:, (2, 0, 1)] - right[:, (2, 0, 1)] * up[:, (1, 2, 0)]
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        return Body(
            corners=np.concatenate([corners, weights @ corners[carrier]]),
            normals=np.concatenate([normals, normals[carrier]]),
            colours=np.array(self._box_colours + self._detail_colours, dtype=np.float64),
            carrier=np.concatenate([np.arange(len(corners)), carrier]),
            footprint=footprint,
        )


def _box_corners(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Face corners [5n, 4, 3] of n boxes, each given by size, position, and scale and shift of its top."""
    size, at, scale, shift = boxes[:, :3], boxes[:, 3:6], boxes[:, 6:8], boxes[:, 8]
    corners = _CORNERS * (size / 2)[:, None, None]
    corners[..., :2] *= np.where(_IS_TOP[..., None], scale[:, None, None], 1.0)
    corners[..., 1] += _IS_TOP * shift[:, None, None]
    corners[..., 2] += size[:, None, None, 2] / 2
    return (corners + at[:, None, None]).reshape(-1, 4, 3)


def build_body(class_id: int, random: np.random.Generator, *, stride: float) -> Body:
    """Build one instance of a class, of random size and colours; a person's legs are apart by `stride`, -1..1."""
    if CLASSES[class_id] == "person":
        return _person(random, stride)
    return (_car, _truck, _bus, _motorcycle)[class_id](random)


def _shade(colour: Colour, factor: float) -> Colour:
    red, green, blue = colour
    return red * factor, green * factor, blue * factor


def _pick(colours: Sequence[Colour], random: np.random.Generator) -> Colour:
    factor = 1 + 0.16 * (random.random() - 0.5)
    return _shade(colours[int(random.integers(len(colours)))], factor)


def _lights(b: Builder, faces: dict[str, int], v: tuple[float, float]) -> None:
    for side, colour in (("front", _HEADLIGHT), ("back", _TAILLIGHT)):
        b.detail(faces[side], (0.04, 0.22), v, colour)
        b.detail(faces[side], (0.78, 0.96), v, colour)


def _car(random: np.random.Generator) -> Body:
    b, paint = Builder(), _pick(_PAINT, random)
    width, length = 1.72 + 0.2 * random.random(), 3.9 + 0.9 * random.random()
    is_estate = random.random() < 0.4
    body = b.box((width, length, 0.62), (0, 0, 0.22), paint, top_scale=(0.94, 0.97))
    b.wheels(body, (0.2, 0.8), width=0.66 / length, v=(-0.35, 0.7))
    _lights(b, body, (0.5, 0.82))
    b.detail(body["front"], (0.28, 0.72), (0.12, 0.45), _TRIM)
    b.detail(body["back"], (0.36, 0.64), (0.2, 0.42), (228, 228, 220))
    b.detail(body["top"], (0.06, 0.94), (0.8, 0.985), _shade(paint, 0.93))
    cabin_length, shift = (0.62, -0.32) if is_estate else (0.5, -0.16)
    scale = (0.78, 0.82) if is_estate else (0.78, 0.62)
    cabin = b.box(
        (width * 0.92, length * cabin_length, 0.56), (0, shift * length / 2.4, 0.84), paint,
        top_scale=scale, top_shift=-0.06, faces={"front": _TRIM, "back": _TRIM},
    )  # fmt: skip
    for side in ("front", "back"):
        b.detail(cabin[side], (0.07, 0.93), (0.08, 0.9), _GLASS)
    for side in ("left", "right"):
        b.detail(cabin[side], (0.08, 0.47), (0.1, 0.86), _GLASS)
        b.detail(cabin[side], (0.52, 0.92), (0.1, 0.86), _GLASS)
    return b.build((width, length, 1.4))


def _truck(random: np.random.Generator) -> Body:
    b, paint, cargo = Builder(), _pick(_PAINT, random), _pick(_CARGO, random)
    width, cargo_length = 2.35, 4.2 + 3.2 * random.random()
    height = 2.3 + 0.5 * random.random()
    length = cargo_length + 2.2
    chassis = b.box((width * 0.92, length, 0.5), (0, 0, 0.4), _TRIM)
    b.wheels(chassis, (0.1, 0.1 + 1.1 / length, 0.86), width=1.0 / length, v=(-0.8, 1.2))
    load = b.box((width, cargo_length, height), (0, -1.1, 0.85), cargo)
    for side in ("left", "right"):
        b.detail(load[side], (0.0, 1.0), (0.0, 0.05), _shade(cargo, 0.7))
        b.detail(load[side], (0.12, 0.6), (0.35, 0.65), _pick(_CARGO, random))
    b.detail(load["back"], (0.485, 0.515), (0.03, 0.97), _TRIM)
    _lights(b, chassis, (0.2, 0.7))
    cab = b.box((width * 0.96, 2.0, 1.9), (0, cargo_length / 2, 0.6), paint, top_scale=(0.94, 0.84), top_shift=-0.1)
    b.detail(cab["front"], (0.08, 0.92), (0.5, 0.92), _GLASS)
    b.detail(cab["front"], (0.2, 0.8), (0.08, 0.34), _TRIM)
    for side, u in (("left", (0.14, 0.62)), ("right", (0.38, 0.86))):
        b.detail(cab[side], u, (0.5, 0.9), _GLASS)
    return b.build((width, length, height + 0.85))


def _bus(random: np.random.Generator) -> Body:
    b, paint = Builder(), _pick(_BUS_PAINT, random)
    width, length = 2.5, 9.5 + 2.5 * random.random()
    body = b.box((width, length, 2.7), (0, 0, 0.3), paint, top_scale=(0.95, 0.99))
    for side in ("left", "right"):
        b.detail(body[side], (0.0, 1.0), (0.3, 0.36), _shade(paint, 0.6))
        for window in range(7):
            b.detail(body[side], (0.03 + 0.136 * window, 0.145 + 0.136 * window), (0.5, 0.86), _GLASS)
    b.wheels(body, (0.2, 0.78), width=1.0 / length, v=(-0.11, 0.26))
    b.detail(body["front"], (0.05, 0.95), (0.36, 0.82), _GLASS)
    b.detail(body["front"], (0.2, 0.8), (0.86, 0.97), (240, 196, 84))
    b.detail(body["back"], (0.12, 0.88), (0.5, 0.86), _GLASS)
    _lights(b, body, (0.1, 0.2))
    for hatch in (0.15, 0.45, 0.72):
        b.detail(body["top"], (0.3, 0.7), (hatch, hatch + 0.12), _shade(paint, 0.86))
    return b.build((width, length, 3.0))


def _motorcycle(random: np.random.Generator) -> Body:
    b, paint, clothes = Builder(), _pick(_PAINT, random), _pick(_CLOTHES, random)
    for y in (-0.62, 0.62):
        b.box((0.16, 0.62, 0.6), (0, y, 0), _TYRE, top_scale=(1, 0.6))
    frame = b.box((0.3, 1.25, 0.5), (0, 0, 0.4), paint, top_scale=(0.8, 0.85))
    b.detail(frame["front"], (0.2, 0.8), (0.4, 0.9), _HEADLIGHT)
    b.detail(frame["back"], (0.25, 0.75), (0.5, 0.9), _TAILLIGHT)
    b.box((0.72, 0.1, 0.08), (0, 0.5, 0.95), _TRIM)
    b.box((0.44, 0.34, 0.62), (0, -0.12, 0.82), clothes, top_scale=(0.9, 0.8), top_shift=0.14)
    b.box((0.27, 0.29, 0.3), (0, 0.06, 1.44), _pick(_PAINT, random), top_scale=(0.75, 0.75))
    return b.build((0.6, 1.9, 1.6))


def _person(random: np.random.Generator, stride: float) -> Body:
    b, top, trousers = Builder(), _pick(_CLOTHES, random), _pick(_CLOTHES, random)
    tall = 0.9 + 0.2 * random.random()
    for x, y in ((-0.11, 0.2 * stride), (0.11, -0.2 * stride)):
        b.box((0.18, 0.22, 0.82 * tall), (x, y, 0), trousers, top_shift=-y)
    b.box((0.5, 0.28, 0.62 * tall), (0, 0, 0.8 * tall), top, top_scale=(0.84, 0.9))
    head = b.box((0.22, 0.24, 0.27), (0, 0.01, 1.43 * tall), _pick(_SKIN, random), top_scale=(0.8, 0.8))
    hair = _pick(((36, 28, 24), (92, 62, 36), (178, 150, 96), (60, 60, 64)), random)
    b.detail(head["back"], (0, 1), (0.25, 1), hair)
    b.detail(head["top"], (0, 1), (0, 1), hair)
    return b.build((0.5, 0.35, 1.7 * tall))
