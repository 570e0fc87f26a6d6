"""Drawn streets for trackers: with stops, crossings, trucks that hide things, exits and returns; truth and detections.

Detections are made of the truth: exactly it, or with two kinds of errors. Those of "noisy" come and go at random, those
of "bursts" are missed for several frames in a row, jitter more, and have false ones that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.masks import coco_rle
from maskjet.traffic.bodies import CLASSES, build_body
from maskjet.traffic.painter import Thing
from maskjet.traffic.street import FPS, Street, TrafficFrame

CAR, TRUCK, BUS, _, PERSON = range(len(CLASSES))
Place = tuple[float, float, float, bool]
"""x and y in metres, heading, and whether it moves."""
Path = Callable[[float], Place | None]
"""Where an actor is at a time in seconds; None while it is not there."""
Actors = Callable[["Scene", np.random.Generator], list[tuple[int, Path]]]
_POSES, _STEPS_HZ = 8, 0.9  # as in maskjet.traffic.street
_BRAKING_S, _STARTING_S = 0.7, 1.0
_ACTOR = 100_000  # added to the number of an actor, so that its track id is none of the street's
_MARGIN = 24  # pixels around a mask, into which it is moved


class Scene(Street):
    """A street whose vehicles stop now and then, and with actors of its own.

    Args:
        seed: Random seed.
        size_hw: Size of the frames in pixels.
        density: Traffic density.
        actors: Makes the actors, as class ids and paths; None for none.
        stops: From when to when the vehicles stand, in seconds.
    """

    def __init__(
        self,
        seed: int,
        size_hw: tuple[int, int],
        *,
        density: float,
        actors: Actors | None = None,
        stops: Sequence[tuple[float, float]] = (),
    ) -> None:
        super().__init__(seed, size_hw, density=density)
        self._stops = stops
        self._actors = actors(self, np.random.default_rng([seed, 99])) if actors else []

    @property
    def kerb(self) -> float:
        """Metres from the road's middle to its edge."""
        return self._layout.kerb

    @property
    def lane_width(self) -> float:
        """In metres."""
        return self._layout.lane_width

    def ground(self, row: float, column: float = 0.5) -> tuple[float, float]:
        """The ground seen at shares of the image's height and width, as x and y in metres."""
        x, y = self._camera.ground()
        place = int((x.shape[0] - 1) * row), int((x.shape[1] - 1) * column)
        return float(x[place]), float(y[place])

    def _driven_s(self, time_s: float) -> float:
        """Seconds of driving until a time."""
        moments = np.linspace(0, max(time_s, 1e-6), 200)
        speed = np.ones_like(moments)
        for begin, end in self._stops:
            speed *= np.clip(np.maximum((begin - moments) / _BRAKING_S, (moments - end) / _STARTING_S), 0, 1)
        return float(np.trapezoid(speed, moments)) if time_s > 0 else time_s

    def _things(self, time_s: float) -> list[Thing]:
        things = [thing for thing in super()._things(self._driven_s(time_s)) if thing.class_id != PERSON]
        things += [thing for thing in super()._things(time_s) if thing.class_id == PERSON]
        for number, (class_id, path) in enumerate(self._actors):
            place = path(time_s)
            if place is None or not self._camera.may_see(*place[:2], 12.0):
                continue
            x, y, turn, is_moving = place
            pose = int(_STEPS_HZ * _POSES * time_s + number) % _POSES if class_id == PERSON and is_moving else 0
            stride = float(np.sin(2 * np.pi * pose / _POSES))
            body = build_body(class_id, np.random.default_rng([self.seed, 31, number]), stride=stride)
            things.append(Thing(body, x, y, turn, class_id, _ACTOR + number))
        return things[:250]


def _walk(
    start: tuple[float, float],
    speed: tuple[float, float],
    *,
    begin_s: float = 0.0,
    pauses: Sequence[tuple[float, float]] = (),
) -> Path:
    """Straight on from a time, with pauses."""

    def path(time_s: float) -> Place | None:
        if time_s < begin_s:
            return None
        moved_s = time_s - begin_s - sum(max(0.0, min(time_s, end) - begin) for begin, end in pauses)
        stands = any(begin <= time_s < end for begin, end in pauses)
        x, y = (place + each * moved_s for place, each in zip(start, speed, strict=True))
        return x, y, 1.0 if speed[1] >= 0 else -1.0, not stands

    return path


def _walk_to_and_fro(start: tuple[float, float], speed: tuple[float, float], turn_s: float, phase_s: float) -> Path:
    """Straight on for `turn_s`, then back, for ever."""

    def path(time_s: float) -> Place:
        since = (time_s + phase_s) % (2 * turn_s)
        there = since < turn_s
        moved_s = since if there else 2 * turn_s - since
        x, y = (place + each * moved_s for place, each in zip(start, speed, strict=True))
        return x, y, 1.0 if (speed[1] >= 0) == there else -1.0, True

    return path


def _crossers(
    scene: Scene, random: np.random.Generator, count: int, y: float, spread: float, begin: tuple[float, float]
) -> list[tuple[int, Path]]:
    actors = []
    for number in range(count):
        side = 1 if number % 2 else -1
        start = side * (scene.kerb + 1), y + random.uniform(-spread, spread)
        speed = -side * random.uniform(1.0, 1.7), random.uniform(-0.1, 0.1)
        actors.append((PERSON, _walk(start, speed, begin_s=random.uniform(*begin))))
    return actors


def crossing(scene: Scene, random: np.random.Generator) -> list[tuple[int, Path]]:
    """Persons who cross the road, past each other."""
    return _crossers(scene, random, 16, scene.ground(0.55)[1], 2.0, (-2, 7))


def parked(scene: Scene, random: np.random.Generator) -> list[tuple[int, Path]]:
    """A bus and a truck stand for 7 s, persons cross behind them, and cars pass."""
    actors: list[tuple[int, Path]] = []
    lane = scene.lane_width / 2
    for row, side, class_id in ((0.72, 1, BUS), (0.5, -1, TRUCK)):
        y = scene.ground(row)[1] + 4
        actors.append((class_id, _walk((side * lane, y), (0, side * 9), pauses=[(0, 7)])))
        actors += _crossers(scene, random, 5, y + 8.5, 1.5, (-3, 5))
    for side, begin_s in ((-1, 0.5), (1, 2.5), (-1, 4.5)):
        actors.append((CAR, _walk((-side * lane, -10 if side < 0 else 60), (0, -8 * side), begin_s=begin_s)))
    return actors


def stops(scene: Scene, random: np.random.Generator) -> list[tuple[int, Path]]:
    """Persons who stop on their way across."""
    actors = []
    y = scene.ground(0.6)[1]
    for number in range(5):
        side = 1 if number % 2 else -1
        begin_s = random.uniform(-2, 3)
        pause = begin_s + random.uniform(1, 3)
        start, speed = (side * (scene.kerb + 1), y + random.uniform(-3, 6)), (-side * random.uniform(0.9, 1.5), 0.0)
        pauses = [(pause, pause + random.uniform(0.5, 2.5))]
        actors.append((PERSON, _walk(start, speed, begin_s=begin_s, pauses=pauses)))
    return actors


def returns(scene: Scene, random: np.random.Generator) -> list[tuple[int, Path]]:
    """Persons who walk out of the image, and come back 0.5 to 3 s later."""
    actors: list[tuple[int, Path]] = []
    for number in range(8):
        column = float(number % 2)
        x, y = scene.ground(random.uniform(0.45, 0.9), column)
        outwards, speed, inside = 2 * column - 1, random.uniform(1.0, 1.8), random.uniform(1.5, 3.0)
        turn_s = inside / speed + random.uniform(0.5, 1.6)
        start = x - outwards * inside, y
        actors.append((PERSON, _walk_to_and_fro(start, (outwards * speed, 0), turn_s, random.uniform(0, turn_s))))
    for number in range(3):
        x, y = scene.ground(0.98, 0.3 + 0.2 * number)
        speed_xy = random.uniform(-0.2, 0.2), -1.4
        actors.append((PERSON, _walk_to_and_fro((x, y + 3.5), speed_xy, 3 + 0.3 * number, random.uniform(0, 3))))
    return actors


def mixed(scene: Scene, random: np.random.Generator) -> list[tuple[int, Path]]:
    """Some of the above."""
    return crossing(scene, random)[:8] + stops(scene, random)[:3] + returns(scene, random)[:4]


@dataclass(frozen=True)
class Kind:
    """A kind of video."""

    size_hw: tuple[int, int]
    """(height, width) in pixels."""
    density: float
    """Traffic density."""
    actors: Actors | None
    """Makes the actors."""
    stops: Sequence[tuple[float, float]]
    """From when to when the vehicles stand, in seconds."""
    frames: int
    """Frames before any are dropped."""
    drops: int | None = None
    """Every so many frames one is dropped."""


KINDS = {
    "crossing": Kind((720, 1280), 0.9, crossing, [(1.2, 6.0)], 240),
    "parked": Kind((720, 1280), 0.45, parked, [], 260),
    "stops": Kind((360, 640), 1.2, stops, [(1.0, 3.0), (5.0, 6.5)], 270),
    "returns": Kind((720, 1280), 0.5, returns, [], 300),
    "small": Kind((360, 640), 1.8, None, [], 240),
    "dropped": Kind((720, 1280), 1.0, mixed, [(2.5, 5.0)], 300, drops=5),
}
VIDEOS = {"tune": (0, 1), "held-out": (2, 3, 4, 5)}
"""Numbers of the videos of each kind, by what they are for."""


@dataclass(frozen=True)
class Truth:
    """A frame's truth."""

    time_s: float
    """Presentation time."""
    things: Detections
    """With `track_id`."""


def draw(name: str, number: int) -> Iterator[tuple[float, TrafficFrame]]:
    """Draw a video, as times in seconds and frames."""
    kind = KINDS[name]
    seed = 1000 + 100 * list(KINDS).index(name) + number
    scene = Scene(seed, kind.size_hw, density=kind.density, actors=kind.actors, stops=kind.stops)
    for index in range(kind.frames):
        if not (kind.drops and index % kind.drops == kind.drops - 1):
            yield index / FPS, scene.frame(index)


def truth_of(time_s: float, frame: TrafficFrame) -> Truth:
    """The truth of a frame, with confidences of 0.9."""
    owners = frame.instance_map
    size_hw = owners.shape[0], owners.shape[1]
    rle = [_encode((0, 0, np.asarray(owners == k + 1, np.uint8)), size_hw) for k in range(len(frame.class_id))]
    things = Detections(
        image_size=size_hw,
        xyxy=np.array([coco_rle.to_xyxy(mask) for mask in rle], np.float32).reshape(-1, 4),
        confidence=np.full(len(rle), 0.9, np.float32),
        class_id=frame.class_id,
        rle=rle,
        class_names=dict(enumerate(CLASSES)),
        track_id=frame.track_id.astype(np.int64),
        track_class_id=frame.class_id.astype(np.int64),
    )
    return Truth(time_s, things)


Mask = tuple[int, int, NDArray[np.uint8]]
"""Left, top, and pixels of a mask, as `coco_rle.decode_crop` returns them."""


class _Errors:
    """Detections with errors, frame by frame."""

    def __init__(self, kind: str, seed: Sequence[int]) -> None:
        self._random = np.random.default_rng([*seed, 17])
        self._bursts = kind == "bursts"
        self._jitter = 0.07 if self._bursts else 0.04
        self._missed_until: dict[int, int] = {}
        self._ghosts: list[tuple[int, Mask, int]] = []

    def _is_missed(self, track_id: int, index: int) -> bool:
        if not self._bursts:
            return bool(self._random.random() < 0.2)
        if self._missed_until.get(track_id, -1) > index:
            return True
        if self._random.random() < 0.02:
            self._missed_until[track_id] = index + int(self._random.integers(4, 16))
            return True
        return False

    def _move(self, mask: Mask) -> Mask:
        """Shift and scale a mask at random."""
        left, top, crop = mask
        height, width = crop.shape
        scale_x, scale_y = np.exp(self._random.normal(0, self._jitter, 2))
        shift_x, shift_y = self._random.normal(0, self._jitter, 2) * (width, height)
        padded = np.pad(crop, _MARGIN)
        middle_x, middle_y = width / 2 + _MARGIN, height / 2 + _MARGIN
        matrix = np.array(
            [[scale_x, 0, middle_x * (1 - scale_x) + shift_x], [0, scale_y, middle_y * (1 - scale_y) + shift_y]]
        )
        moved = cv2.warpAffine(padded, matrix, padded.shape[::-1], flags=cv2.INTER_NEAREST)
        return left - _MARGIN, top - _MARGIN, np.asarray(moved, dtype=np.uint8)

    def _false_ones(self, things: Detections, index: int) -> list[tuple[int, Mask, int]]:
        """Last frame, mask and class of false detections, which have the shapes of things nearby."""
        random = self._random
        self._ghosts = [ghost for ghost in self._ghosts if ghost[0] > index]
        assert things.rle is not None
        new = (int(random.random() < 0.25) if self._bursts else random.poisson(1.5)) if len(things) else 0
        for _ in range(new):
            i = int(random.integers(len(things)))
            left, top, crop = coco_rle.decode_crop(things.rle[i])
            x, y = random.uniform(-60, 60, 2).astype(int)
            end = index + int(random.integers(3, 9)) if self._bursts else index + 1
            self._ghosts.append((end, (left + int(x), top + int(y), crop), int(things.class_id[i])))
        return self._ghosts

    def apply(self, index: int, things: Detections) -> Detections:
        random, (height, width) = self._random, things.image_size
        rows: list[tuple[float, int, dict[str, Any]]] = []
        assert things.track_id is not None
        assert things.rle is not None
        for track_id, class_id, mask in zip(things.track_id, things.class_id, things.rle, strict=True):
            if self._is_missed(int(track_id), index):
                continue
            confidence = random.normal(0.75 if coco_rle.area(mask) > 200 else 0.55, 0.2)
            found_class = int(class_id) if random.random() > 0.05 else int(random.integers(len(CLASSES)))
            rows += _row(self._move(coco_rle.decode_crop(mask)), confidence, found_class, (height, width))
        for _, shape, class_id in self._false_ones(things, index):
            rows += _row(shape, random.uniform(0.1, 0.7), class_id, (height, width))
        rows.sort(key=lambda row: -row[0])
        rle = [row[2] for row in rows]
        return Detections(
            image_size=things.image_size,
            xyxy=np.array([coco_rle.to_xyxy(mask) for mask in rle], np.float32).reshape(-1, 4),
            confidence=np.array([row[0] for row in rows], np.float32),
            class_id=np.array([row[1] for row in rows], np.int32),
            rle=rle,
            class_names=things.class_names,
        )


def _row(
    mask: Mask, confidence: float, class_id: int, size_hw: tuple[int, int]
) -> list[tuple[float, int, dict[str, Any]]]:
    """A detection of the part of a mask that is within the image; none of less than 16 pixels."""
    left, top, crop = mask
    x1, y1 = max(left, 0), max(top, 0)
    inside = crop[y1 - top : max(size_hw[0] - top, 0), x1 - left : max(size_hw[1] - left, 0)]
    if np.count_nonzero(inside) < 16:
        return []
    return [(float(np.clip(confidence, 0.1, 0.99)), class_id, _encode((x1, y1, inside), size_hw))]


def _encode(mask: Mask, size_hw: tuple[int, int]) -> dict[str, Any]:
    """Encode a mask by its columns alone, a tenth of the time of the image's."""
    left, top, crop = mask
    x, _, width, _ = cv2.boundingRect(crop)
    columns = np.zeros((size_hw[0], width), np.uint8)
    columns[top : top + crop.shape[0]] = crop[:, x : x + width]
    counts = coco_rle.read_counts(coco_rle.encode(columns)[0])[0].copy()
    counts[0] += size_hw[0] * (left + x)
    behind = size_hw[0] * (size_hw[1] - left - x - width)
    if len(counts) % 2:
        counts[-1] += behind
    elif behind:
        counts = np.append(counts, behind)
    return {"size": [*size_hw], "counts": coco_rle.counts_to_string(counts)}


def detect(kind: str, seed: Sequence[int], truth: Sequence[Truth]) -> list[Detections]:
    """Detections made of the truth: kind "perfect", "noisy" or "bursts"."""
    if kind == "perfect":
        return [replace(each.things, track_id=None, track_class_id=None) for each in truth]
    errors = _Errors(kind, seed)
    return [errors.apply(index, each.things) for index, each in enumerate(truth)]
