"""Static scenery: ground, houses, and poles and trees that occlude instances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.traffic.bodies import Body, Builder, Colour, palette
from maskjet.traffic.camera import NEAR_M, SUBPIXEL_BITS, Camera, to_fixed_point

FAR_M = 260.0  # distance of full haze
_COVERED = 255  # owner of occluders' pixels, in a canvas's fourth channel, until cut out


@dataclass(frozen=True)
class Light:
    """Light of sun and sky at a time of day."""

    towards_sun: NDArray[np.float64]
    """Unit vector [3] towards the sun."""
    ambient: float
    """Brightness of surfaces that the sun does not reach."""
    diffuse: float
    """Brightness the sun adds to surfaces that face it."""
    tint: NDArray[np.float64]
    """Colour of the light, [3] RGB factors."""
    shadow: float
    """Brightness of the ground in shadow, 0..1."""
    haze: Colour
    """RGB, 0..255, that distant objects fade into."""


@dataclass(frozen=True)
class Layout:
    """The road's cross-section and crossing; lengths in metres."""

    lanes: int
    """Number of lanes on each side of the road's middle."""
    lane_width: float
    """Width of each lane."""
    verge: float
    """Width of the grass between kerb and pavement, 0 for none."""
    pavement: float
    """Width of the pavement."""
    crossing_y: float
    """Start of the zebra crossing along the road."""

    @property
    def kerb(self) -> float:
        """Half the road's width."""
        return self.lanes * self.lane_width + 0.4


_GRASS, _SLAB, _JOINT, _VERGE, _KERB, _ASPHALT, _MARKING = range(7)  # materials of the ground: rows of _PAINTS
_PAINTS = np.array(
    [
        (112, 128, 84, 18),
        (164, 158, 150, 9),
        (140, 135, 128, 6),
        (96, 122, 70, 16),
        (178, 176, 172, 5),
        (88, 90, 94, 11),
        (214, 212, 204, 20),
    ],
    dtype=np.float32,
)  # RGB and roughness


def draw_ground(camera: Camera, layout: Layout, light: Light, random: np.random.Generator) -> NDArray[np.uint8]:
    """Draw the empty street, uint8 [H, W, 3], before lens effects."""
    across, along = camera.ground()
    far = (np.clip(along / FAR_M, 0, 1) ** 1.5).astype(np.float32)
    x, y = (np.clip(np.nan_to_num(metres), -400, 400).astype(np.float32) for metres in (across, along))
    paint = _choose_paint(x, y, layout)
    patches = 5 * np.sin(0.21 * y + 1.3 * np.sin(0.5 * x)) - 4 * np.cos(2 * np.pi / layout.lane_width * x)
    tufts = 14 * np.sin(x * 0.9 + 2 * np.sin(y * 0.3)) * np.sin(y * 0.7)
    rough = _grain(x, y, random) * np.take(_PAINTS[:, 3], paint)
    rough += np.where(paint == _ASPHALT, patches, np.where(paint == _GRASS, tufts, 0))
    colour = np.take(_PAINTS[:, :3], paint, axis=0) + rough[..., None]
    colour *= (light.tint * (light.ambient + light.diffuse * light.towards_sun[2])).astype(np.float32)
    colour += far[..., None] * (np.array(light.haze, dtype=np.float32) - colour)
    return np.asarray(np.clip(colour, 0, 255), dtype=np.uint8)


def _choose_paint(x: NDArray[np.float32], y: NDArray[np.float32], layout: Layout) -> NDArray[np.uint8]:
    side, pavement = np.abs(x), layout.kerb + layout.verge
    edges = np.array([layout.kerb, layout.kerb + 0.22, pavement, pavement + layout.pavement])
    edges[2] = max(edges[1:3])  # without a verge the pavement begins at the kerb
    zones = np.array([_ASPHALT, _KERB, _VERGE, _SLAB, _GRASS], dtype=np.uint8)
    paint = zones[np.searchsorted(edges, side)]
    paint[(paint == _SLAB) & (y < 35) & ((np.mod(x, 0.9) < 0.05) | (np.mod(y, 0.9) < 0.05))] = _JOINT
    paint[_is_marked(x, y, layout)] = _MARKING
    return paint


def _is_marked(x: NDArray[np.float32], y: NDArray[np.float32], layout: Layout) -> NDArray[np.bool_]:
    """Whether points are painted white: lane and edge lines, zebra crossing, stop line."""
    side = np.abs(x)
    on_crossing = (y > layout.crossing_y) & (y < layout.crossing_y + 3.2)
    dashes = np.mod(y, 9) < 4
    between_lanes = np.mod(side + 0.07, layout.lane_width) < 0.14
    white = between_lanes & dashes & (side > 0.5) & (side < layout.kerb - 0.6)
    white |= np.abs(side - (layout.kerb - 0.35)) < 0.07
    white |= np.abs(side - 0.16) < 0.06
    white &= (y < layout.crossing_y - 1) | (y > layout.crossing_y + 4.2)
    white |= on_crossing & (np.mod(x, 1.0) < 0.5) & (side < layout.kerb - 0.3)
    white |= (y > layout.crossing_y - 1.6) & (y < layout.crossing_y - 1.2) & (x > 0.2) & (x < layout.kerb - 0.3)
    return white


def _grain(x: NDArray[np.float32], y: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
    """Noise fixed to the ground, about -1..1, at two scales."""
    tile = random.standard_normal((256, 256), dtype=np.float32)
    fine = tile[_cell(x * 24), _cell(y * 24)]
    coarse = cv2.blur(tile, (9, 9)) * 6
    rough = coarse[_cell(x * 9), _cell(y * 9)]
    return np.asarray((0.45 * fine + 0.55 * rough) / (1 + y.clip(0) / 40), dtype=np.float32)


def _cell(position: NDArray[np.float32]) -> NDArray[np.int64]:
    """Index into a repeating tile of 256 cells."""
    return np.floor(position).astype(np.int64) & 255


def houses(layout: Layout, random: np.random.Generator) -> list[tuple[Body, float, float]]:
    """Houses on both sides of the road: (body, x, y), far ones first."""
    found = []
    for side in (-1, 1):
        y = -10.0
        while y < 240:
            length, height = random.uniform(9, 22), random.uniform(6, 15)
            setback = layout.kerb + layout.verge + layout.pavement + random.uniform(0.5, 3.5)
            if random.random() < 0.85:
                body = _house((10, length, height), side, random)
                found.append((body, side * (setback + 5), y + length / 2))
            y += length + (random.uniform(2, 8) if random.random() < 0.4 else 0.0)
    return sorted(found, key=lambda house: -house[2])


_FACADES = palette("c6b096 b06a54 d6cebe 96989c ceaa70 aabab2")


def _house(size: tuple[float, float, float], side: int, random: np.random.Generator) -> Body:
    facade = _FACADES[int(random.integers(len(_FACADES)))]
    floors, bays = max(int(size[2] / 3), 2), max(int(size[1] / 2.6), 3)
    street_face = "right" if side < 0 else "left"
    shades = random.uniform(0.75, 1.2, (floors, bays)).tolist()
    b = Builder()
    faces = b.box(size, (0, 0, 0), facade, faces={"top": (120, 96, 88)})
    for floor in range(floors):
        v = ((floor + 0.32) / floors, (floor + 0.78) / floors)
        for bay in range(bays):
            shade = shades[floor][bay]
            colour = (62 * shade, 76 * shade, 92 * shade)
            for face, count in ((street_face, bays), ("back", 4)):
                if bay < count:
                    b.detail(faces[face], ((bay + 0.25) / count, (bay + 0.75) / count), v, colour)
    return b.build(size)


@dataclass(frozen=True)
class Occluder:
    """A lamp, sign or tree: occludes instances, but is none."""

    x: float
    """Position across the road, in metres from its middle."""
    y: float
    """Position along the road, in metres."""
    kind: str
    """Kind of occluder: "lamp", "sign" or "tree"."""
    colour: Colour
    """RGB of a tree's crown or a sign's plate."""
    height: float
    """Height of the top in metres."""
    blobs: NDArray[np.float64]
    """[n, 4]: spheres of a tree's crown, as offset x, y, z from its middle and radius, in metres."""


def occluders(layout: Layout, random: np.random.Generator) -> Iterator[Occluder]:
    """Yield lamps, signs and trees along both kerbs."""
    for side in (-1, 1):
        for y in np.arange(random.uniform(6, 16), 150, random.uniform(14, 24)):
            kind = ("lamp", "sign", "tree")[int(random.choice(3, p=(0.35, 0.2, 0.45)))]
            green = (random.uniform(54, 96), random.uniform(104, 136), random.uniform(44, 72))
            plate = ((42, 84, 160), (196, 40, 44), (232, 196, 60))[int(random.integers(3))]
            yield Occluder(
                x=side * (layout.kerb + (layout.verge / 2 if layout.verge else 0.5)),
                y=float(y),
                kind=kind,
                colour=plate if kind == "sign" else green,
                height={"lamp": 6.5, "sign": 2.6, "tree": random.uniform(4, 6.5)}[kind],
                blobs=np.column_stack([random.normal(0, 0.62, (28, 3)), random.uniform(0.35, 0.75, 28)]),
            )


def draw_occluder(canvas: NDArray[np.uint8], camera: Camera, light: Light, thing: Occluder) -> None:
    """Draw an occluder onto a canvas, uint8 [H, W, 4], with the owner _COVERED."""
    trunk = np.array([(thing.x, thing.y, 0.0), (thing.x, thing.y, thing.height)])
    pixels, depth = camera.project(trunk)
    if depth.min() < NEAR_M + 1 or not camera.may_see(thing.x, thing.y, thing.height + 2):
        return
    metre = camera.focal_px / depth[0]
    bark = (74, 58, 46) if thing.kind == "tree" else (108, 112, 116)
    width = {"tree": 0.32, "lamp": 0.14, "sign": 0.08}[thing.kind] * metre
    _line(canvas, pixels, width, _lit(bark, light, 0.4))
    if thing.kind == "lamp":
        arm = camera.project(trunk[1] + np.array([(0, 0, 0), (-1.6 * np.sign(thing.x), 0, 0.25)]))[0]
        _line(canvas, arm, width * 0.8, _lit(bark, light, 0.6))
        _disc(canvas, arm[1], 0.16 * metre, _lit((240, 232, 200), light, 1.0))
    elif thing.kind == "sign":
        _disc(canvas, pixels[1], 0.38 * metre, _lit((236, 236, 232), light, 0.7))
        _disc(canvas, pixels[1], 0.32 * metre, _lit(thing.colour, light, 0.7))
    else:
        crown = np.array([thing.x, thing.y, thing.height]) + thing.blobs[:, :3]
        towards_sun = thing.blobs[:, :3] @ light.towards_sun
        sunny = 1 / (1 + np.exp(-2.2 * towards_sun[:, None]))
        shades = _lit(np.array(thing.colour) * (0.72 + 0.42 * sunny), light, sunny)  # shaded even under a clouded sky
        spots = to_fixed_point(camera.project(crown)[0]).tolist()
        radii = to_fixed_point(thing.blobs[:, 3] * metre).tolist()
        for i in np.argsort(towards_sun):
            cv2.circle(canvas, spots[i], radii[i], shades[i], cv2.FILLED, shift=SUBPIXEL_BITS)


def _lit(colour: Colour | NDArray[np.float64], light: Light, sunny: float | NDArray[np.float64]) -> list[Any]:
    """RGB under a light, with _COVERED as fourth value; `sunny` is the share of sunlight."""
    rgb = np.array(colour) * light.tint * (light.ambient + light.diffuse * sunny)
    covered = np.full((*rgb.shape[:-1], 1), _COVERED)
    lit: list[Any] = np.concatenate([np.clip(rgb, 0, 255), covered], axis=-1).tolist()
    return lit


def _line(canvas: NDArray[np.uint8], ends: NDArray[np.float64], width: float, colour: list[float]) -> None:
    (x1, y1), (x2, y2) = ends
    along = np.array([x2 - x1, y2 - y1])
    across = np.array([-along[1], along[0]]) / max(float(np.hypot(*along)), 1e-6) * max(width, 0.7) / 2
    corners = np.array([ends[0] - across, ends[0] + across, ends[1] + across, ends[1] - across])
    cv2.fillConvexPoly(canvas, to_fixed_point(corners), colour, shift=SUBPIXEL_BITS)


def _disc(canvas: NDArray[np.uint8], centre: NDArray[np.float64], radius: float, colour: list[float]) -> None:
    x, y = to_fixed_point(centre).tolist()
    cv2.circle(canvas, (x, y), round(max(radius, 0.6) * (1 << SUBPIXEL_BITS)), colour, cv2.FILLED, shift=SUBPIXEL_BITS)
