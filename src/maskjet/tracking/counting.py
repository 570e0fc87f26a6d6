"""Lines and zones that count tracked instances: crossings, presence and dwell time."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.checks import check_count
from maskjet.detections import Detections, are_finite
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.sources.counts import Count, Event, Points
from maskjet.sources.source import Frame

Anchor = Literal["corners", "center", "bottom"]
"""Points of a box that stand for its position: all corners, its centre, or the middle of its bottom edge."""
_FORGOTTEN = 1000  # frames; a track unseen for longer is forgotten
_FARTHEST = 2.0**20  # pixels; OpenCV has 32-bit coordinates


@dataclass(slots=True)
class _Track:
    """State of a track at one line or zone."""

    is_in: bool
    class_name: str = ""
    seen: int = 0  # last frame with a known side
    run: int = 0  # consecutive known frames on the other side
    since_s: float | None = None  # time of entry
    dwell_s: float = 0.0  # seconds since entry
    came_as: str = ""  # class at entry; later votes may change the class


class _Counter:
    """Counts tracks that change sides; see `Line` and `Zone`."""

    def __init__(self, points: Sequence[Sequence[float]], name: str, anchor: Anchor, frames: int) -> None:
        try:
            corners = np.array([(float(x), float(y)) for x, y in points])
            is_right = bool((np.abs(corners) <= _FARTHEST).all())
        except (TypeError, ValueError, OverflowError):
            is_right = False
        if not is_right:
            raise InputError(f"points must be (x, y) in pixels, up to {_FARTHEST:,.0f}, got {points!r}.")
        if anchor not in get_args(Anchor):
            raise InputError(f"anchor must be {', '.join(get_args(Anchor))}, got {anchor!r}.")
        check_count("frames", frames)
        self.name = name
        self.points: Points = tuple((x, y) for x, y in corners.tolist())
        self._anchor, self._frames, self._frame = anchor, frames, 0
        self._tracks: dict[int, _Track] = {}
        self._in, self._out = Counter[str](), Counter[str]()

    def update(self, found: Detections, time_s: float | None = None) -> Count:
        """Count the next frame's detections; those without a confirmed track, id -1, are ignored.

        Takes the frame's time in seconds, None without a clock; returns the counts up to it, with its events. Raises
        InputError if the detections are not tracked, or lack the masks that a share needs.
        """
        if found.track_id is None and len(found):
            raise InputError("found must be tracked, got no track_id: use model.stream(..., track=True).")
        self._frame += 1
        track_id = np.zeros(0, np.int64) if found.track_id is None else found.track_id
        counted = (track_id >= 0) & are_finite(found)
        ids, found = track_id[counted].tolist(), found[counted]
        sides = self._find_sides(found)
        classes = (found.class_id if found.track_class_id is None else found.track_class_id).tolist()
        events = []
        for row in np.flatnonzero(sides >= 0).tolist():
            side, number = bool(sides[row]), ids[row]
            track = self._tracks.setdefault(number, _Track(side and isinstance(self, Line)))
            track.class_name = found.class_names.get(classes[row], str(classes[row]))
            track.seen = self._frame
            track.run = track.run + 1 if side != track.is_in else 0
            if track.run < self._frames:
                continue
            track.is_in, track.run = side, 0
            (self._in if side else self._out)[track.class_name] += 1
            x1, _, x2, y2 = found.xyxy[row].tolist()
            dwell_s = None if side or track.since_s is None else track.dwell_s
            way: Literal["in", "out"] = "in" if side else "out"
            events.append(Event(self.name, way, number, track.class_name, ((x1 + x2) / 2, y2), dwell_s))
            track.since_s, track.dwell_s = time_s if side and isinstance(self, Zone) else None, 0.0
            track.came_as = track.class_name
        if self._frame % _FORGOTTEN == 0:
            oldest = self._frame - _FORGOTTEN
            self._tracks = {number: track for number, track in self._tracks.items() if track.seen > oldest}
        return Count(self.name, self.points, dict(self._in), dict(self._out), events, **self._stays(time_s))

    def _find_sides(self, found: Detections) -> NDArray[np.int8]:
        """The side of each detection, int8 [n]: 1 in, 0 out, -1 neither."""
        raise NotImplementedError

    def _stays(self, _: float | None) -> dict[str, Any]:
        """The fields of `Count` that only zones have."""
        return {}

    def _find_anchors(self, found: Detections) -> NDArray[np.float64]:
        """The k anchor points of each detection, float64 [k, n, 2], (x, y) in pixels."""
        x1, y1, x2, y2 = found.xyxy.astype(np.float64).T
        if self._anchor == "corners":
            return np.stack([np.stack(point, axis=1) for point in ((x1, y1), (x2, y1), (x1, y2), (x2, y2))])
        return np.stack([(x1 + x2) / 2, y2 if self._anchor == "bottom" else (y1 + y2) / 2], axis=1)[None]


class Line(_Counter):
    """Counts tracks that cross a line, with `anchor="corners"` as supervision's `LineZone` does.

    A track is on a side if all its anchor points are, between the perpendiculars through the line's ends; else it is
    on neither. The side on which it is seen first is its own; it crosses when it is seen on the other one for `frames`
    frames without one on its own between them. "In" is to the left, looking from the start to the end. What differs: a
    track that is missed keeps its side for 1,000 frames at least, where supervision forgets it after `frames` + 1.

    Args:
        start: One end, (x, y) in pixels.
        end: The other end.
        name: Name in outputs.
        anchor: Points of a box that must have crossed: "corners", "center" or "bottom", the middle of the bottom edge.
        frames: Frames on the other side that make a crossing, at least 1: supervision's `minimum_crossing_threshold`.

    Raises:
        InputError: An argument is not as above, or both ends are the same.

    Examples:
        >>> import maskjet
        >>> gate = maskjet.tracking.Line((0, 100), (200, 100), name="gate")
        >>> for y in (150, 90, 40):
        ...     row = {"class_id": 0, "class_name": "car", "confidence": 1, "xyxy": [80, y, 99, y + 30], "track_id": 7}
        ...     car = {"size": [200, 200], "has_masks": False, "detections": [row]}
        ...     print(gate.update(maskjet.Detections.from_dict(car)))
        gate: in 0, out 0
        gate: in 0, out 0
        gate: in 1 (1 car), out 0
    """

    def __init__(
        self,
        start: Sequence[float],
        end: Sequence[float],
        *,
        name: str = "line",
        anchor: Anchor = "bottom",
        frames: int = 1,
    ) -> None:
        super().__init__((start, end), name, anchor, frames)
        if self.points[0] == self.points[1]:
            raise InputError(f"end must be another point than start, got {self.points[0]} twice.")

    def _find_sides(self, found: Detections) -> NDArray[np.int8]:
        start, end = np.array(self.points)
        along, from_start = end - start, self._find_anchors(found) - start
        reach = from_start @ along
        is_beside = ((reach >= 0) & (reach <= along @ along)).all(axis=0)
        is_left = along[0] * from_start[..., 1] - along[1] * from_start[..., 0] < 0
        has_side = is_beside & (is_left.all(axis=0) | ~is_left.any(axis=0))
        return np.where(has_side, is_left[0], -1).astype(np.int8)


class Zone(_Counter):
    """Counts tracks that enter, occupy and leave a polygon, and measures their dwell times.

    Each stay begins with an "in", also that of a track that is first seen inside, and ends with an "out" if the track
    is seen to leave; one that is lost inside has none. A track changes sides when it is seen on the other one for
    `frames` frames without one on its own between them. Pixels on the edge are inside, as in supervision's
    `PolygonZone`, whose `current_count` is the sum of `Count.inside_by_class` with `frames=1`.

    Args:
        points: At least three corners, (x, y) in pixels.
        name: Name in outputs.
        anchor: Points of a box that must be inside: "corners", "center" or "bottom", the middle of the bottom edge.
        share: In place of an anchor, the least share of a mask's pixels that must be inside, above 0 and up to 1.
        frames: Frames after which a change of sides counts, at least 1.

    Raises:
        InputError: An argument is not as above.
    """

    def __init__(
        self,
        points: Sequence[Sequence[float]],
        *,
        name: str = "zone",
        anchor: Anchor = "bottom",
        share: float | None = None,
        frames: int = 3,
    ) -> None:
        super().__init__(points, name, anchor, frames)
        if len(self.points) < 3:
            raise InputError(f"points must be at least three corners of a zone, got {len(self.points)}.")
        if share is not None and not 0 < share <= 1:
            raise InputError(f"share must be above 0 and at most 1, got {share}.")
        self._share = share
        self._drawn = np.empty((0, 0), np.uint8)  # 1 inside; one row and column more, for box edges
        self._before = np.empty(0, np.int32)  # cumulative count of pixels inside, column-major
        self._dwell_s, self._longest_s = dict[str, float](), dict[str, float]()

    def _find_sides(self, found: Detections) -> NDArray[np.int8]:
        height, width = found.image_size
        if self._drawn.shape != (height + 1, width + 1):
            self._drawn = np.zeros((height + 1, width + 1), np.uint8)
            cv2.fillPoly(self._drawn, [np.array(self.points).astype(np.int32)], 1)
            self._before = np.append(np.int32(0), self._drawn[:-1, :-1].T.cumsum(dtype=np.int32))
        if self._share is not None:
            return (self._find_shares(found) >= self._share).astype(np.int8)
        points = np.rint(self._find_anchors(found))
        is_near = ((points >= 0) & (points <= (width, height))).all(axis=2)
        x, y = points.clip(0, (width, height)).astype(np.int64).transpose(2, 0, 1)
        return np.asarray((is_near & (self._drawn[y, x] > 0)).all(axis=0), np.int8)

    def _find_shares(self, found: Detections) -> NDArray[np.float64]:
        """The share of each mask's pixels inside the zone, float64 [n], computed from RLE runs."""
        if found.rle is None:
            raise InputError("share must be None for detections without masks; use an anchor.")
        runs = coco_rle.to_runs(found.rle, found.image_size)
        starts, ends = runs.spans.T
        masks = np.repeat(np.arange(len(found)), np.diff(runs.firsts))
        inside = np.bincount(masks, self._before[ends] - self._before[starts], len(found))
        return np.asarray(inside / np.maximum(np.bincount(masks, ends - starts, len(found)), 1))

    def _stays(self, time_s: float | None) -> dict[str, Any]:
        inside = [track for track in self._tracks.values() if track.is_in and track.seen == self._frame]
        for track in inside:
            if time_s is not None and track.since_s is not None:
                before_s, track.dwell_s = track.dwell_s, max(time_s - track.since_s, track.dwell_s)
                name = track.came_as
                self._dwell_s[name] = self._dwell_s.get(name, 0.0) + track.dwell_s - before_s
                self._longest_s[name] = max(self._longest_s.get(name, 0.0), track.dwell_s)
        return {
            "inside_by_class": dict(Counter(track.class_name for track in inside)),
            "mean_dwell_s": {name: total / max(self._in[name], 1) for name, total in self._dwell_s.items()},
            "longest_dwell_s": dict(self._longest_s),
        }


class Counting:
    """Counts at lines and zones, separately for each source of a stream.

    Args:
        counters: Lines and zones that have counted nothing yet, each with a name of its own.

    Raises:
        InputError: Two have one name.
    """

    def __init__(self, counters: Sequence[Line | Zone]) -> None:
        names = [each.name for each in counters]
        if len(set(names)) < len(names):
            raise InputError(f"counters must have names of their own, got {', '.join(names)}.")
        self._counters = counters
        self._by_stream: dict[int, Sequence[Line | Zone]] = {}

    def update(self, frame: Frame, found: Detections) -> Frame:
        """Count the next frame's detections, as `Line.update` does; returns the frame with its counts."""
        if frame.stream not in self._by_stream:
            self._by_stream[frame.stream] = copy.deepcopy(self._counters)
        counts = [each.update(found, frame.time_s) for each in self._by_stream[frame.stream]]
        return replace(frame, counts=counts)


def parse_counters(texts: Sequence[str]) -> list[Line | Zone]:
    """Parse lines and zones: "gate=line:0,400,1280,400" or "zone:0,0,99,0,99,99:share=0.5:frames=5".

    That is "NAME=", which may be missing; "line:" or "zone:" with coordinates in pixels; and arguments of `Line` or
    `Zone`, each as ":NAME=VALUE". Without a name, one is named as in "line1", by its position.

    Raises:
        InputError: A text has another form, an argument is wrong, or two have one name.
    """
    counters = [_parse(text, number) for number, text in enumerate(texts, 1)]
    Counting(counters)  # checks the names
    return counters


def _parse(text: str, number: int) -> Line | Zone:
    head, _, rest = text.partition(":")
    name, _, kind = head.rpartition("=")
    shape, *options = rest.split(":")
    readers: dict[str, Any] = {"anchor": str, "frames": int, "share": float}
    try:
        values = [float(value) for value in shape.split(",")]
        points = list(zip(values[::2], values[1::2], strict=True))
        given = {key: readers[key](value) for key, _, value in (option.partition("=") for option in options)}
        given["name"] = name or f"{kind}{number}"
        return Line(*points, **given) if {"line": True, "zone": False}[kind] else Zone(points, **given)
    except InputError as error:
        raise InputError(f"count must be right, {text!r} is not: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            "count must be [NAME=]line:x1,y1,x2,y2 or [NAME=]zone:x1,y1,x2,y2,x3,y3,..., perhaps with :anchor=bottom, "
            f":frames=3 or, for a zone, :share=0.5 at its end, got {text!r}."
        ) from error
