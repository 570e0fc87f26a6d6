"""Detections of one frame, moved to others: forward from it, or between two detected frames."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.jit import Bools, Ints
from maskjet.masks import coco_rle
from maskjet.propagation.motion import POINTS, Image, Points, choose_points, count_alike, fit, follow, move_mask
from maskjet.tracking.matching import NEVER, assign, box_iou

_ROWS = 4  # of points within a box
_LEAST_PIXELS = 16  # of a moved mask, if it had as many
_LINKED, _LINKED_OTHERS = 0.2, 0.5  # box IoU of an instance in two detected frames; if its class has changed
_FAITHFUL = 0.5  # distance at which a point comes back, in shrunk pixels, that was followed forward and backward


class _Cut(NamedTuple):
    """A mask to move."""

    corner: complex
    """Where the crop's first pixel is."""
    crop: Image
    """As in `move_mask`, and the next field."""
    alike: NDArray[np.uint16]
    least: int
    """Fewest pixels of it moved."""


class Step(NamedTuple):
    """Points followed from one frame to the next, and the motion fitted to them."""

    moves: Points
    """complex128 [n, 2]: the motion to it from the detected frame."""
    here: Points
    """complex128 [n, k]: points in the frame before."""
    there: Points
    """The same points in this frame."""
    is_found: Bools
    """Which of them were found."""


class Moving:
    """A detected frame, whose detections move to other frames.

    Args:
        found: What was detected.
        grey: The shrunk frame, uint8 [h, w].
    """

    def __init__(self, found: Detections, grey: Image) -> None:
        self.found, self.grey = found, grey
        height, width = found.image_size
        self.start = np.tile([1 + 0j, 0j], (len(found), 1))
        """The motion to the frame itself: none, complex128 [n, 2]."""
        self.factor = complex(width / grey.shape[1], height / grey.shape[0])
        """Frame pixels per shrunk pixel, across and down."""
        self._masks: list[_Cut | None] = [None] * len(found)
        boxes = found.xyxy.astype(np.float64).clip(0, (width, height, width, height))
        self._corners: Points = boxes[:, 0::2] + 1j * boxes[:, 1::2]
        self._at_edge = np.stack(
            [boxes[:, 0] < 1, boxes[:, 1] < 1, boxes[:, 2] > width - 1, boxes[:, 3] > height - 1], 1
        )

    @cached_property
    def _points(self) -> Points:
        """The points that are followed, complex128 [n, k]."""
        found = self.found
        return self._spread() if found.rle is None else choose_points(coco_rle.to_runs(found.rle, found.image_size))

    def follow(self, greys: Sequence[Image], start: Points | None = None) -> list[Step]:
        """Follow the instances to each of the frames after the first one, where `start` had come to."""
        moves, steps = self.start if start is None else start, []
        for before, after in pairwise(greys):
            here = _apply(moves, self._points)
            there, is_found = follow(before, after, here, self.factor)
            step = fit(here, there, is_found, self.factor.real)
            moves = np.stack([step[:, 0] * moves[:, 0], step[:, 0] * moves[:, 1] + step[:, 1]], axis=1)
            steps.append(Step(moves, here, there, is_found))
        return steps

    def last(self, greys: Sequence[Image], steps: Sequence[Step], rows: Ints) -> Ints:
        """In how many of the frames after the first one instances are there: most points are found, and come back."""
        alive, count = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.int64)
        for (before, after), step in zip(pairwise(greys), steps, strict=False):
            again, came_back = follow(after, before, step.there[rows], self.factor)
            is_true: Bools = step.is_found[rows] & came_back
            is_true &= np.abs(again - step.here[rows]) < _FAITHFUL * self.factor.real
            alive &= is_true.mean(axis=1) >= 0.5
            count += alive
            if not alive.any():
                break
        return count

    def boxes(self, moves: Points) -> NDArray[np.float32]:
        """The moved boxes, float32 [n, 4], clamped to the image; edges that the image cut off stay there."""
        height, width = self.found.image_size
        middle = _apply(moves, self._corners.mean(axis=1, keepdims=True))
        half = np.abs(moves[:, :1]) * (self._corners[:, 1:] - self._corners[:, :1]) / 2
        low, high = middle - half, middle + half
        edges = np.concatenate([low.real, low.imag, high.real, high.imag], axis=1)
        edges = np.where(self._at_edge, (0, 0, width, height), edges)
        return edges.clip(0, (width, height, width, height)).astype(np.float32)

    def mask(self, i: int, move: Points) -> bytes:
        """COCO's string of a moved mask; empty if next to nothing is left of it."""
        cut = self._masks[i] = self._masks[i] or self._cut(i)
        height, width = self.found.image_size
        rows, columns = cut.crop.shape
        turn, offset = complex(move[0]), complex(move[1])
        ends = turn * (cut.corner + np.array([0, columns - 1, 1j * (rows - 1), columns - 1 + 1j * (rows - 1)])) + offset
        left, top = max(int(ends.real.min()), 0), max(int(ends.imag.min()), 0)
        right, bottom = min(int(ends.real.max()) + 2, width), min(int(ends.imag.max()) + 2, height)
        if right <= left or bottom <= top:
            return b""
        window = (left, top, right, bottom)
        return move_mask(cut.crop, cut.alike, cut.corner, turn, offset, window, (height, width), cut.least).tobytes()

    def _spread(self) -> Points:
        """Points within boxes, whose borders may be background."""
        x, y = np.divmod(np.arange(POINTS), _ROWS)
        shares = 0.1 + 0.8 * ((x + 0.5) * _ROWS / POINTS + 1j * (y + 0.5) / _ROWS)
        sides = self._corners[:, 1:] - self._corners[:, :1]
        return self._corners[:, :1] + sides.real * shares.real + 1j * sides.imag * shares.imag

    def _cut(self, i: int) -> _Cut:
        """A mask with a border; where the image cuts it off, it goes on behind the edge by half of its size."""
        assert self.found.rle is not None
        left, top, crop = coco_rle.decode_crop(self.found.rle[i])
        height, width = self.found.image_size
        rows, columns = crop.shape
        least = min(int(np.count_nonzero(crop)), _LEAST_PIXELS)
        up, down = (rows // 2 * at for at in (top == 0, top + rows == height))
        before, behind = (columns // 2 * at for at in (left == 0, left + columns == width))
        if crop.size:
            crop = np.asarray(cv2.copyMakeBorder(crop, up, down, before, behind, cv2.BORDER_REPLICATE), np.uint8)
        padded = np.zeros((crop.shape[0] + 2, crop.shape[1] + 2), np.uint8)
        padded[1:-1, 1:-1] = crop
        corner = complex(left - before - 1, top - up - 1)
        return _Cut(corner, padded, count_alike(padded), max(least, 1))


class Part(NamedTuple):
    """Instances of one detected frame at another frame."""

    moving: Moving
    """The detected frame's instances."""
    moves: Points
    """complex128 [n, 2]: their motion."""
    rows: Ints
    """Which of them are there."""
    since: int
    """Frames between the two."""
    partners: Part | None = None
    """The same instances of another detected frame, as many rows, to unite with; -1 for none."""

    def boxes(self) -> NDArray[np.float32]:
        """Boxes of the rows."""
        boxes = self.moving.boxes(self.moves)[self.rows]
        if self.partners is not None:
            has_one = self.partners.rows >= 0
            others = self.partners.moving.boxes(self.partners.moves)[self.partners.rows[has_one]]
            boxes[has_one, :2] = np.minimum(boxes[has_one, :2], others[:, :2])
            boxes[has_one, 2:] = np.maximum(boxes[has_one, 2:], others[:, 2:])
        return boxes

    def masks(self) -> list[bytes]:
        """COCO's strings of the rows' masks, empty if nothing is left."""
        strings = [self.moving.mask(int(i), self.moves[i]) for i in self.rows]
        if self.partners is None:
            return strings
        _, moves, rows, *_ = self.partners
        others = [self.partners.moving.mask(int(j), moves[j]) if j >= 0 else b"" for j in rows]
        size_hw = self.moving.found.image_size
        return [_unite(pair, size_hw) if all(pair) else max(pair) for pair in zip(strings, others, strict=True)]


def move(parts: Sequence[Part]) -> Detections:
    """Detections at one frame, most confident first, of the parts of the same stream."""
    first = parts[0].moving.found
    boxes = np.concatenate([part.boxes() for part in parts])
    confidence = np.concatenate([part.moving.found.confidence[part.rows] for part in parts])
    classes = np.concatenate([part.moving.found.class_id[part.rows] for part in parts])
    moved = np.concatenate([np.full(len(part.rows), part.since) for part in parts])
    is_left = (boxes[:, 2] - boxes[:, 0] >= 1) & (boxes[:, 3] - boxes[:, 1] >= 1)
    strings = None if first.rle is None else [string for part in parts for string in part.masks()]
    if strings is not None:
        is_left &= np.array([len(string) > 0 for string in strings], np.bool_)
    order = np.argsort(-confidence, kind="stable")
    order = order[is_left[order]]
    rle = None if strings is None else [{"size": [*first.image_size], "counts": strings[k]} for k in order]
    fields = boxes[order], confidence[order], classes[order], rle, first.class_names
    return Detections(first.image_size, *fields, moved=moved[order])


def between(ahead: Moving, greys: Sequence[Image], behind: Moving, *, covers: bool) -> list[Detections]:
    """Detections of the frames between two detected ones, both ways: each instance moved from the nearer one.

    What only one of them has is there while its points are found and come back. With `covers` it is there in all of
    the frames, and masks of both are united.
    """
    count, shrunk = len(greys), [ahead.grey, *greys, behind.grey]
    forward, backward = ahead.follow(shrunk), behind.follow(shrunk[::-1])
    second_of = _link(ahead, forward[-1].moves, behind.found)
    linked = np.flatnonzero(second_of >= 0)
    first_of = np.full(len(behind.found), -1)
    first_of[second_of[linked]] = linked
    lonely = np.flatnonzero(second_of < 0), np.flatnonzero(first_of < 0)
    if covers:
        until = np.full(len(lonely[0]), count), np.full(len(lonely[1]), count)
    else:
        until = ahead.last(shrunk[:-1], forward, lonely[0]), behind.last(shrunk[:0:-1], backward, lonely[1])
    found = []
    for k in range(1, count + 1):
        left, is_near = count + 1 - k, 2 * k <= count + 1
        mine, theirs = lonely[0][until[0] >= k], lonely[1][until[1] >= left]
        if is_near:
            mine = np.concatenate([linked, mine])
        else:
            theirs = np.concatenate([second_of[linked], theirs])
        one = Part(ahead, forward[k - 1].moves, mine, k)
        other = Part(behind, backward[left - 1].moves, theirs, left)
        if covers:
            one, other = (
                one._replace(partners=other._replace(rows=second_of[mine])),
                other._replace(partners=one._replace(rows=first_of[theirs])),
            )
        found.append(move([one, other]))
    return found


def _link(ahead: Moving, moves: Points, found: Detections) -> Ints:
    """Match moved detections with those found at the same frame: int64 [n], rows of `found`, -1 for none."""
    overlap = box_iou(ahead.boxes(moves).astype(np.float64), found.xyxy.astype(np.float64))
    is_same = ahead.found.class_id[:, None] == found.class_id[None]
    is_linked = overlap >= np.where(is_same, _LINKED, _LINKED_OTHERS)
    linked = np.full(len(overlap), -1)
    for j, i in enumerate(assign(np.where(is_linked, overlap + is_same, NEVER))):
        if i >= 0:
            linked[i] = j
    return linked


def _unite(strings: Sequence[bytes], size_hw: tuple[int, int]) -> bytes:
    """Union of masks, as COCO's strings."""
    rles = [{"size": [*size_hw], "counts": string} for string in strings]
    united: bytes = coco_rle.encode(coco_rle.to_runs(rles, size_hw).unite()[None])[0]["counts"]
    return united


def _apply(moves: Points, points: Points) -> Points:
    return moves[:, :1] * points + moves[:, 1:]
