"""Rendering a frame: all bodies are projected and lit at once, then filled from the farthest face to the nearest.

A canvas is uint8 [H, W, 4]: RGB and the number of the object that owns the pixel. One fill writes both, without
antialiasing, so that the thing seen at a pixel is its owner by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.traffic.bodies import Body
from maskjet.traffic.camera import NEAR_M, SUBPIXEL_BITS, Camera, to_fixed_point
from maskjet.traffic.scenery import FAR_M, Light

Canvas = NDArray[np.uint8]
_SMALL_PX = 2.0  # details with a shorter diagonal are left out: without antialiasing they would look too large


@dataclass(frozen=True)
class Thing:
    """An instance on the street at one moment."""

    body: Body
    """Shape and colours of the instance."""
    x: float
    """Metres from the road's middle to the instance's, positive to the right."""
    y: float
    """Metres along the road to the instance's middle."""
    turn: float = 1.0
    """Heading: 1 is away from the camera, -1 towards it."""
    class_id: int = 0
    """Index into CLASSES."""
    track: int = 0
    """Track id, constant over time."""

    @property
    def footprint(self) -> tuple[float, float, float, float]:
        """Covered ground rectangle: x1, y1, x2, y2, in metres."""
        width, length, _ = self.body.footprint
        return self.x - width / 2, self.y - length / 2, self.x + width / 2, self.y + length / 2


@dataclass(frozen=True)
class Sprite:
    """A static picture, drawn once."""

    left: int
    """Left edge in the image, in pixels."""
    top: int
    """Top edge in the image, in pixels."""
    picture: Canvas
    """uint8 [h, w, 4], owner 0."""
    cover: NDArray[np.uint8]
    """uint8 [h, w]: nonzero where the picture is drawn."""
    footprint: tuple[float, float, float, float]
    """Covered ground rectangle: x1, y1, x2, y2, in metres."""

    def draw(self, canvas: Canvas) -> None:
        """Draw the picture onto a canvas."""
        height, width = self.cover.shape
        view = canvas[self.top : self.top + height, self.left : self.left + width]
        cv2.copyTo(self.picture, self.cover, view)


def cut_sprite(canvas: Canvas, footprint: tuple[float, float, float, float]) -> Sprite | None:
    """Move pixels with an owner other than 0 from a canvas to a sprite, clearing it; None without any."""
    left, top, width, height = cv2.boundingRect(canvas[..., 3])
    if width == 0:
        return None
    view = canvas[top : top + height, left : left + width]
    picture, cover = view.copy(), view[..., 3].copy()
    picture[..., 3] = 0
    view[:] = 0
    return Sprite(left, top, picture, cover, footprint)


def draw_bodies(
    canvas: Canvas, camera: Camera, *, light: Light, things: Sequence[Thing], sprites: Sequence[Sprite] = ()
) -> None:
    """Draw instances and sprites, nearer over farther ones; owners are the instances' positions, from 1."""
    footprints = [thing.footprint for thing in things] + [sprite.footprint for sprite in sprites]
    order = order_by_depth(np.array(footprints), camera.position[:2])
    polygons, colours, ends = _prepare_faces(camera, light, {i + 1: things[i] for i in order if i < len(things)})
    spans = pairwise([0, *ends])
    for i in order:
        if i >= len(things):
            sprites[i - len(things)].draw(canvas)
            continue
        start, end = next(spans)
        for polygon, colour in zip(polygons[start:end], colours[start:end], strict=True):
            cv2.fillConvexPoly(canvas, polygon, colour, shift=SUBPIXEL_BITS)


def order_by_depth(footprints: NDArray[np.float64], eye: NDArray[np.float64]) -> list[int]:
    """Order upright instances so that each comes before all that can occlude it.

    If a line along or across the road separates two things, the one on the eye's side can hide the other. This also
    orders a long bus beside short cars, which distances of middles do not. If footprints overlap, the thing with the
    farther middle comes first.

    Footprints [n, 4] are the ground covered, x1, y1, x2, y2; `eye` [2] is the camera's x and y, in metres.
    """
    low, high = footprints.reshape(-1, 2, 2).swapaxes(0, 1)
    below = high[:, None] <= low[None]  # [i, j, axis]: i ends before j begins
    on_eye_side = (below & (eye <= low[None])) | (below.swapaxes(0, 1) & (eye >= high[None]))
    can_hide = np.any(on_eye_side, axis=2)
    hides = can_hide & ~can_hide.T
    distance = np.hypot(*((low + high) / 2 - eye).T)
    hidden_waiting = hides.sum(axis=1)
    order: list[int] = []
    for _ in range(len(footprints)):
        nearest_free = int(np.argmax(np.where(hidden_waiting == 0, distance, distance - 1e6)))
        order.append(nearest_free)
        hidden_waiting -= hides[:, nearest_free]
        distance[nearest_free] = -np.inf
    return order


def _prepare_faces(
    camera: Camera, light: Light, owned: dict[int, Thing]
) -> tuple[list[NDArray[np.int32]], list[list[float]], list[int]]:
    """Visible faces in drawing order: polygons, RGB with owner, and the end of each instance's faces."""
    if not owned:
        return [], [], []
    owners, things = np.array(list(owned)), list(owned.values())
    counts = [len(thing.body.colours) for thing in things]
    number = np.repeat(np.arange(len(things)), counts)
    places = np.array([(thing.x, thing.y, 0.0) for thing in things])[number]
    heading = np.array([(thing.turn, thing.turn, 1.0) for thing in things])[number]
    normals = np.concatenate([thing.body.normals for thing in things]) * heading
    corners = np.concatenate([thing.body.corners for thing in things]) * heading[:, None] + places[:, None]
    first = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
    carrier = np.concatenate([thing.body.carrier for thing in things]) + first

    to_face = corners.mean(axis=1) - camera.position
    distance = np.einsum("fk,fk->f", to_face, to_face)
    diagonal = corners[:, 2] - corners[:, 0]
    is_large = np.einsum("fk,fk->f", diagonal, diagonal) * (camera.focal_px / _SMALL_PX) ** 2 > distance
    is_seen = (np.einsum("fk,fk->f", normals, to_face) < 0) & (is_large | (carrier == np.arange(len(carrier))))
    is_seen[is_seen] = camera.to_view(corners[is_seen])[..., 2].max(axis=1) > NEAR_M
    seen = np.flatnonzero(is_seen)
    order = seen[np.lexsort((seen, -distance[carrier[seen]], number[seen]))]

    colours = np.concatenate([thing.body.colours for thing in things])[order]
    rgb = _light_up(colours, normals[order], places[order, 1], light)
    ends = np.searchsorted(number[order], np.arange(len(things)), side="right").tolist()
    view = camera.to_view(corners[order])
    polygons = list(to_fixed_point(camera.to_pixels(view)))
    for face in np.flatnonzero(view[..., 2].min(axis=1) < NEAR_M):
        polygons[face] = to_fixed_point(camera.to_pixels(_cut_near(view[face])))
    return polygons, np.column_stack([rgb, owners[number[order]]]).tolist(), ends


def _light_up(
    colours: NDArray[np.float64], normals: NDArray[np.float64], y: NDArray[np.float64], light: Light
) -> NDArray[np.float64]:
    """Light faces by sun and haze: RGB [F, 3]."""
    sunny = np.clip(normals @ light.towards_sun, 0, None)
    rgb = colours * light.tint * (light.ambient + light.diffuse * sunny)[:, None]
    haze = np.clip(y / FAR_M, 0, 1)[:, None] ** 1.5
    return np.clip(rgb + haze * (np.array(light.haze) - rgb), 0, 255)


def _cut_near(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """Clip a convex polygon [k, 3] at the near plane: the part at a depth of at least NEAR_M."""
    kept = []
    for here, there in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if here[2] >= NEAR_M:
            kept.append(here)
        if (here[2] >= NEAR_M) != (there[2] >= NEAR_M):
            kept.append(here + (NEAR_M - here[2]) / (there[2] - here[2]) * (there - here))
    return np.array(kept)
