"""A street seen from a mast: its traffic, and the frames a camera takes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.checks import as_int, check_count
from maskjet.errors import InputError
from maskjet.traffic import scenery
from maskjet.traffic.bodies import CLASSES, Body, build_body
from maskjet.traffic.camera import NEAR_M, SUBPIXEL_BITS, Camera, to_fixed_point
from maskjet.traffic.painter import Canvas, Sprite, Thing, cut_sprite, draw_bodies

FPS = 30.0
"""Frames per second of a street."""
SIZES_HW = {"312": (176, 312), "720p": (720, 1280), "1080p": (1080, 1920)}
"""(height, width) in pixels by name: the sizes of the published videos."""
MIN_PIXELS = 16
"""Fewest visible pixels of a listed instance; smaller ones are drawn, but their pixels belong to no instance."""
_MIN_SIDE = 16
_START_M, _END_M = -14.0, 170.0  # positions where instances appear and vanish
_LARGEST_M = 12.0  # reach of the largest instance and its shadow
_MOST_THINGS = 250  # owner numbers fit in a byte
_VEHICLES = (0.66, 0.13, 0.09, 0.12, 0.0)  # shares of the classes on the road
_SHADOW_REACH = 0.8  # share of a box's height that casts a shadow: bodies taper
_POSES, _STEPS_HZ = 8, 0.9  # poses of a walking person, and their cycles per second
_PERSON = CLASSES.index("person")


@dataclass(frozen=True, eq=False)
class TrafficFrame:
    """One image with its ground truth.

    A pixel belongs to the frontmost thing drawn there, before lens blur and noise. Shadows belong to the ground.
    """

    image: NDArray[np.uint8]
    """uint8 [H, W, 3], RGB."""
    instance_map: NDArray[np.uint8]
    """uint8 [H, W]: k for pixels of the k-th instance, 0 for no instance."""
    class_id: NDArray[np.int32]
    """int32 [n]: indices into CLASSES."""
    track_id: NDArray[np.int32]
    """int32 [n]: track ids, constant in all frames of a street."""

    def masks(self) -> NDArray[np.bool_]:
        """Bool [n, H, W]: the pixels of each instance, without overlap."""
        numbers = np.arange(1, len(self.class_id) + 1, dtype=np.uint8)
        return np.asarray(self.instance_map == numbers[:, None, None])

    def xyxy(self) -> NDArray[np.float32]:
        """float32 [n, 4]: the tight box of each mask in pixels, right and bottom exclusive."""
        boxes = np.zeros((len(self.class_id), 4), dtype=np.float32)
        for box, mask in zip(boxes, self.masks(), strict=True):
            x, y, width, height = cv2.boundingRect(mask.view(np.uint8))
            box[:] = x, y, x + width, y + height
        return boxes


@dataclass(frozen=True)
class _Route:
    """A route on which instances follow one another, at one speed, along the whole street."""

    track: int
    x: float
    y: float
    speed: float
    classes: tuple[float, ...]


class Street:
    """An endless scene, whose frames can be drawn in any order.

    The same seed shows the same scene at every size, and gives the same bytes for the same size and index.

    Args:
        seed: Random seed of layout, camera, light and traffic.
        size_hw: (height, width) of the frames in pixels, at least 16.
        density: Traffic density: 1 is lively, 0 empty.

    Raises:
        InputError: A size below 16 pixels, or a negative density or seed.
    """

    def __init__(self, seed: int = 0, size_hw: tuple[int, int] = (720, 1280), *, density: float = 1.0) -> None:
        if len(size_hw) != 2 or min(size_hw) < _MIN_SIDE:
            raise InputError(f"size_hw must be (height, width) of at least {_MIN_SIDE} pixels, got {size_hw}.")
        limits.check("image_pixels", math.prod(size_hw), f"size_hw {tuple(size_hw)} has")
        if not density >= 0:
            raise InputError(f"density must be at least 0, got {density}.")
        check_count("seed", as_int(seed), least=0)
        random = np.random.default_rng([seed, 7])
        self.seed = seed
        self._layout = _random_layout(random)
        self._light = _random_light(random)
        self._camera = _random_camera(random, self._layout, size_hw)
        self._routes = _random_routes(random, self._layout, density)
        self._occluders = self._draw_occluders(random)
        self._ground = self._draw_background(random)
        self._body = lru_cache(maxsize=2048)(self._build_body)
        self._noise = np.clip(random.normal(0, 3.2, (size_hw[0] + 32, size_hw[1] + 32, 1)), -12, 12).astype(np.int16)
        self._vignette = _vignette(size_hw)

    def frame(self, index: int) -> TrafficFrame:
        """Draw the frame at `index` / 30 seconds."""
        canvas = self._ground.copy()
        things = self._things(index / FPS)
        self._draw_shadows(canvas, things)
        draw_bodies(canvas, self._camera, light=self._light, things=things, sprites=self._occluders)
        return self._develop(canvas, things, index)

    def _draw_background(self, random: np.random.Generator) -> Canvas:
        """Ground and houses, uint8 [H, W, 4] with owner 0."""
        ground = scenery.draw_ground(self._camera, self._layout, self._light, random)
        canvas = np.dstack([ground, np.zeros(ground.shape[:2], dtype=np.uint8)])
        houses = [Thing(body, x, y) for body, x, y in scenery.houses(self._layout, random)]
        draw_bodies(canvas, self._camera, light=self._light, things=houses)
        canvas[..., 3] = 0
        return canvas

    def _draw_occluders(self, random: np.random.Generator) -> list[Sprite]:
        """Draw the lamps, signs and trees once, as sprites."""
        canvas = np.zeros((*self._camera.size_hw, 4), dtype=np.uint8)
        sprites = []
        for thing in scenery.occluders(self._layout, random):
            scenery.draw_occluder(canvas, self._camera, self._light, thing)
            sprites.append(cut_sprite(canvas, (thing.x - 0.1, thing.y - 0.1, thing.x + 0.1, thing.y + 0.1)))
        return [sprite for sprite in sprites if sprite]

    def _things(self, time_s: float) -> list[Thing]:
        """Instances that may be visible, at most _MOST_THINGS."""
        things = []
        span = _END_M - _START_M
        for route in self._routes:
            rounds, along = divmod(route.y + route.speed * time_s, span)
            if not self._camera.may_see(route.x, _START_M + along, _LARGEST_M):
                continue
            pose = int(_STEPS_HZ * _POSES * time_s + route.track) % _POSES if route.classes[_PERSON] else 0
            body, class_id, sway = self._body(route, int(rounds), pose)
            things.append(
                Thing(
                    body=body,
                    class_id=class_id,
                    track=route.track + int(rounds) * len(self._routes),
                    x=route.x + sway * np.sin(0.35 * time_s + route.track),
                    y=_START_M + along,
                    turn=1.0 if route.speed >= 0 else -1.0,
                )
            )
        return things[:_MOST_THINGS]

    def _build_body(self, route: _Route, rounds: int, pose: int) -> tuple[Body, int, float]:
        """Body in a pose, class id and sideways sway in metres of a route's instance in its `rounds`-th pass."""
        random = np.random.default_rng([self.seed, 11, route.track, rounds & 0xFFFF])
        class_id = int(random.choice(len(route.classes), p=route.classes))
        sway = 0.25 * float(random.random())
        return build_body(class_id, random, stride=float(np.sin(2 * np.pi * pose / _POSES))), class_id, sway

    def _draw_shadows(self, canvas: Canvas, things: list[Thing]) -> None:
        """Darken the ground in shadow: under instances, and where they cast it."""
        if not things:
            return
        sun = self._light.towards_sun
        cast = -sun[:2] / max(sun[2], 0.2)
        x_sign, y_sign = np.where(cast < 0, -1, 1)
        hull = np.array([(-1, -1, 0), (1, -1, 0), (1, -1, 1), (1, 1, 1), (-1, 1, 1), (-1, 1, 0)]) * (x_sign, y_sign, 1)
        size = np.array([thing.body.footprint for thing in things])[:, None]
        place = np.array([(thing.x, thing.y) for thing in things])[:, None]
        outline = place + hull[:, :2] * size[..., :2] / 2 + hull[:, 2:] * cast * size[..., 2:] * _SHADOW_REACH
        pixels, depth = self._camera.project(np.dstack([outline, np.zeros(outline.shape[:2])]))
        shadow = np.zeros(canvas.shape[:2], dtype=np.uint8)
        for polygon in to_fixed_point(pixels[depth.min(axis=1) > NEAR_M]):
            cv2.fillConvexPoly(shadow, polygon, 255, shift=SUBPIXEL_BITS)
        cv2.copyTo(cv2.convertScaleAbs(canvas, alpha=self._light.shadow), shadow, canvas)

    def _develop(self, canvas: NDArray[np.uint8], things: list[Thing], index: int) -> TrafficFrame:
        """Apply lens blur, exposure and noise, and list instances with at least MIN_PIXELS visible."""
        owner = canvas[..., 3]
        exposure = 1 + 0.03 * np.sin(index / 47 + self.seed)
        blurred = cv2.GaussianBlur(np.ascontiguousarray(canvas[..., :3]), (3, 3), 0.6 * max(canvas.shape[0] / 720, 0.7))
        exposed = cv2.multiply(blurred, self._vignette, scale=exposure / 255)
        shift = np.random.default_rng([self.seed, 13, index & 0xFFFFFFFF]).integers(0, 32, 2)
        noise = self._noise[shift[0] :, shift[1] :][: canvas.shape[0], : canvas.shape[1]]
        image = cv2.add(exposed, cv2.merge([noise] * 3), dtype=cv2.CV_8U)
        seen = np.bincount(owner.ravel(), minlength=len(things) + 1)[1:]
        listed = np.flatnonzero(seen >= MIN_PIXELS)
        renumber = np.zeros(256, dtype=np.uint8)
        renumber[listed + 1] = np.arange(1, len(listed) + 1)
        return TrafficFrame(
            image=np.asarray(image, dtype=np.uint8),
            instance_map=np.asarray(cv2.LUT(np.ascontiguousarray(owner), renumber), dtype=np.uint8),
            class_id=np.array([things[i].class_id for i in listed], dtype=np.int32),
            track_id=np.array([things[i].track for i in listed], dtype=np.int32),
        )


def sample(seed: int, *, size_hw: tuple[int, int] = (720, 1280)) -> TrafficFrame:
    """Draw one still of a random street; different seeds give unrelated stills.

    Args:
        seed: Random seed of the street and the moment, at least 0.
        size_hw: (height, width) in pixels, at least 16 a side.
    """
    check_count("seed", as_int(seed), least=0)
    random = np.random.default_rng([seed, 5])
    street = Street(seed, size_hw, density=float(random.uniform(0.35, 1.4)))
    return street.frame(int(random.integers(0, 100_000)))


def _random_layout(random: np.random.Generator) -> scenery.Layout:
    return scenery.Layout(
        lanes=int(random.integers(1, 3)),
        lane_width=random.uniform(3.2, 3.7),
        verge=random.uniform(1.2, 2.2) if random.random() < 0.5 else 0.0,
        pavement=random.uniform(2.6, 4.2),
        crossing_y=random.uniform(16, 34),
    )


def _random_light(random: np.random.Generator) -> scenery.Light:
    direction = np.array([random.uniform(-0.8, 0.8), random.uniform(-0.7, 0.4), random.uniform(0.45, 0.9)])
    sun = direction / np.linalg.norm(direction)
    day = scenery.Light(sun, 0.66, 0.58, np.array([1.0, 0.985, 0.95]), 0.54, (190, 204, 220))
    kinds = (
        day,
        replace(day, ambient=0.92, diffuse=0.12, tint=np.array([0.95, 0.98, 1.02]), shadow=0.78, haze=(178, 184, 190)),
        replace(day, ambient=0.54, diffuse=0.5, tint=np.array([1.1, 0.92, 0.8]), shadow=0.56, haze=(206, 168, 140)),
    )
    return kinds[int(random.choice(3, p=(0.5, 0.3, 0.2)))]


def _random_camera(random: np.random.Generator, layout: scenery.Layout, size_hw: tuple[int, int]) -> Camera:
    x = random.uniform(-1, 1) * (layout.kerb + 1.5)
    return Camera(
        size_hw=size_hw,
        height_m=random.uniform(6.0, 9.5),
        x_m=x,
        pitch=np.radians(random.uniform(21, 33)),
        yaw=-np.radians(random.uniform(0, 16)) * np.sign(x),
        field_of_view=np.radians(random.uniform(36, 46)),
    )


def _random_routes(random: np.random.Generator, layout: scenery.Layout, density: float) -> list[_Route]:
    """Vehicles in lanes (right-hand traffic) and persons on pavements; a stream's members keep their distances."""
    routes: list[_Route] = []

    def fill(x: float, speed: float, *, gap: tuple[float, float], share: float, classes: tuple[float, ...]) -> None:
        y, end = random.uniform(0, gap[1]), _END_M - _START_M - gap[0]
        while y < end:
            wobble, is_taken = random.normal(), random.random() < share
            if is_taken:
                routes.append(_Route(len(routes), x + 0.12 * wobble, y, speed, classes))
            y += random.uniform(*gap)

    for lane in range(layout.lanes):
        for direction in (-1, 1):
            x = direction * (lane + 0.5) * layout.lane_width
            fill(x, direction * random.uniform(6, 13), gap=(15, 30), share=min(0.75 * density, 1), classes=_VEHICLES)
    person = tuple(float(class_id == _PERSON) for class_id in range(len(CLASSES)))
    pavement = layout.kerb + layout.verge
    for side in (-1, 1):
        for place in (0.2, 0.45, 0.7, 0.9):
            speed = random.choice((-1, 1)) * random.uniform(0.8, 1.6)
            x = side * (pavement + place * layout.pavement)
            fill(x, speed, gap=(3, 26), share=min(0.45 * density, 1), classes=person)
    return routes


def _vignette(size_hw: tuple[int, int]) -> NDArray[np.uint8]:
    """uint8 [H, W, 3]: 255 in the middle, darker towards the corners."""
    height, width = size_hw
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    shade = 255 * (1 - 0.1 * (x**2 + y**2))
    return np.repeat(shade[..., None], 3, axis=-1).astype(np.uint8)
