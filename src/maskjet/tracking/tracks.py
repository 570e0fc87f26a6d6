"""Tracks: where things are and how they move, their masks and the votes for their classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from maskjet.jit import compiled, types
from maskjet.tracking.strips import STRIPS, Ints, Strips
from maskjet.tracking.tuning import Tuning

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[Any]
_LEAST_AREA = 1.0  # of a box in pixels, for sizes
TRACK = np.dtype(
    [
        ("edges", np.float64, 4),  # x1, y1, x2, y2 in pixels; each has a Kalman filter of its own
        ("speeds", np.float64, 4),  # of the edges, in pixels per second
        ("spreads", np.float64, (4, 3)),  # variance of an edge's place, covariance with its speed, the speed's variance
        ("anchor", np.float64, 2),  # middle of the box that the mask belongs to
        ("mask_box", np.int64, 4),  # tight box of the mask
        ("area", np.int64),  # pixels of the mask
        ("id", np.int64),  # -1 until confirmed
        ("best", np.float64),  # highest confidence of its detections
        ("born_s", np.float64),
        ("seen_s", np.float64),  # when it was last found
        ("until_s", np.float64),  # until when it is kept without being found
        ("is_covered", np.bool_),  # lost, and its predicted place was covered in the last frame
    ],
    align=True,
)
ROWS = numba.from_dtype(TRACK)[::1]
"""Type of `Tracks.rows` in compiled functions."""
CONSTANTS = types.NamedUniTuple(numba.float64, len(Tuning._fields), Tuning)
"""Type of a `Tuning` there."""


class Given(NamedTuple):
    """The detections of a frame."""

    size_hw: tuple[int, int]
    """Size of the image in pixels."""
    boxes: Floats
    """float64 [n, 4], within the image."""
    confidence: Floats
    """float64 [n]."""
    classes: Ints
    """int64 [n]: columns of `Tracks.votes`."""
    masks: Strips
    """Their masks."""


GIVEN = types.NamedTuple(
    (types.UniTuple(numba.int64, 2), numba.float64[:, ::1], numba.float64[::1], numba.int64[::1], STRIPS), Given
)
"""Type of `Given` there."""


class Tracks:
    """Tracks with their masks and votes; none at first.

    Args:
        classes: Number of classes known so far.
    """

    def __init__(self, classes: int = 0) -> None:
        self.rows: Rows = np.zeros(0, TRACK)
        """A row per track."""
        self.votes: Floats = np.zeros((0, max(classes, 1)))
        """float64 [t, c]: summed confidence of each class."""
        self._strips, self._firsts = np.empty((0, 3), np.int32), np.zeros(1, np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def add_classes(self, count: int) -> None:
        """Make room for the votes of so many classes in all."""
        missing = count - self.votes.shape[1]
        if missing > 0:
            self.votes = np.pad(self.votes, ((0, 0), (0, missing)))

    def masks(self) -> tuple[Strips, Ints]:
        """The masks where they were found, and by how many pixels they have moved since, int64 [t, 2]."""
        boxes, areas, moves = _place_masks(self.rows)
        return Strips(self._strips, self._firsts, boxes, areas), moves

    def renew(self, is_gone: Bools, new: int, found: Strips, origins: Ints) -> Ints:
        """Drop tracks, bool [t], append zeroed rows for new ones, and take masks; returns where the others are now.

        Args:
            is_gone: bool [t].
            new: Number of new tracks.
            found: Masks that were found.
            origins: int64 [t + new]: i for the mask of track i, ~n for that of found mask n.

        Returns:
            int64 [t]: the new row of each track, -1 if it is gone.
        """
        count = len(self) - int(np.count_nonzero(is_gone)) + new
        rows, votes = np.zeros(count, TRACK), np.zeros((count, self.votes.shape[1]))
        old = self.rows, self.votes, self._strips, self._firsts
        self._strips, self._firsts, places = _renew(*old, is_gone, found.strips, found.firsts, origins, rows, votes)
        self.rows, self.votes = rows, votes
        return places


@compiled(
    types.Tuple((numba.int32[:, ::1], numba.int64[::1], numba.int64[::1]))(
        *(ROWS, numba.float64[:, ::1], numba.int32[:, ::1], numba.int64[::1], numba.boolean[::1]),
        *(numba.int32[:, ::1], numba.int64[::1], numba.int64[::1], ROWS, numba.float64[:, ::1]),
    )
)
def _renew(
    old_rows: Rows,
    old_votes: Floats,
    strips: NDArray[np.int32],
    firsts: Ints,
    is_gone: Bools,
    found: NDArray[np.int32],
    found_firsts: Ints,
    origins: Ints,
    rows: Rows,
    votes: Floats,
) -> tuple[NDArray[np.int32], Ints, Ints]:
    """Fill the rows and votes of tracks that stay; returns the strips of all, their `firsts`, and the rows' places."""
    places, kept, taken = np.full(len(old_rows), -1), 0, np.empty(len(rows), np.int64)
    for i in range(len(origins)):
        if i < len(old_rows):
            if is_gone[i]:
                continue
            rows[kept], votes[kept], places[i] = old_rows[i], old_votes[i], kept
        taken[kept] = origins[i]
        kept += 1
    new_firsts = np.zeros(len(taken) + 1, np.int64)
    for n, k in enumerate(taken):
        length = firsts[k + 1] - firsts[k] if k >= 0 else found_firsts[~k + 1] - found_firsts[~k]
        new_firsts[n + 1] = new_firsts[n] + length
    new_strips = np.empty((new_firsts[-1], 3), np.int32)
    for n, k in enumerate(taken):
        mask = strips[firsts[k] : firsts[k + 1]] if k >= 0 else found[found_firsts[~k] : found_firsts[~k + 1]]
        new_strips[new_firsts[n] : new_firsts[n + 1]] = mask
    return new_strips, new_firsts, places


@compiled("float64(Array(float64, 1, 'A'))")
def size_of(box: Floats) -> float:
    """The root of a box's area, in pixels."""
    area = max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)
    return float(np.sqrt(max(area, _LEAST_AREA)))


@compiled(types.Tuple((numba.int64[:, ::1], numba.int64[::1], numba.int64[:, ::1]))(ROWS))
def _place_masks(rows: Rows) -> tuple[Ints, Ints, Ints]:
    """Tight boxes and areas of masks, and their moves in whole pixels."""
    boxes, areas = np.empty((len(rows), 4), np.int64), np.empty(len(rows), np.int64)
    moves = np.empty((len(rows), 2), np.int64)
    for i in range(len(rows)):
        row = rows[i]
        boxes[i], areas[i] = row.mask_box, row.area
        for k in range(2):
            moves[i, k] = np.int64(np.rint((row.edges[k] + row.edges[k + 2]) / 2 - row.anchor[k]))
    return boxes, areas, moves


@compiled(numba.void(ROWS, numba.float64, numba.float64, CONSTANTS))
def predict(rows: Rows, passed_s: float, last_s: float, tuning: Tuning) -> None:
    """Move tracks on by their speeds; those that the last frame, of `last_s`, did not have slow down."""
    for row in rows:
        slowing, shrinking = 1.0, 1.0
        if row.seen_s < last_s:
            slowing = np.exp(-passed_s / (tuning.covered_still_s if row.is_covered else tuning.still_s))
            shrinking = np.exp(-10 * passed_s / tuning.still_s)
        edges, speeds, spreads = row.edges, row.speeds, row.spreads
        for k in range(2):
            middle = slowing * (speeds[k] + speeds[k + 2]) / 2
            half = shrinking * (speeds[k + 2] - speeds[k]) / 2
            speeds[k], speeds[k + 2] = middle - half, middle + half
            edges[k] += speeds[k] * passed_s
            edges[k + 2] += speeds[k + 2] * passed_s
        noise = tuning.acceleration**2 * size_of(edges) ** 2
        for k in range(4):
            both, speed = spreads[k, 1], spreads[k, 2]
            spreads[k, 0] += passed_s * (2 * both + passed_s * speed) + noise * passed_s**3 / 3
            spreads[k, 1] += passed_s * speed + noise * passed_s**2 / 2
            spreads[k, 2] += noise * passed_s


@compiled(
    numba.void(
        *(types.Array(numba.float64, 1, "A"), numba.float64[::1], types.UniTuple(numba.int64, 2)),
        *(numba.boolean, numba.float64, numba.boolean[::1]),
    )
)
def _find_hidden_edges(
    edges: Floats, box: Floats, size_hw: tuple[int, int], is_cut: bool, depth: float, is_hidden: Bools
) -> None:
    """Which edges of a track are not those of its detection, bool [4].

    Those well within the predicted ones, if the thing is cut; and those at the image's border.
    """
    for k in range(4):
        axis = k % 2
        inwards = box[k] - edges[k] if k < 2 else edges[k] - box[k]
        is_at_border = box[k] <= 1 if k < 2 else box[k] >= size_hw[1 - axis] - 1
        is_deep = inwards > depth * (edges[axis + 2] - edges[axis])
        is_hidden[k] = (is_cut and is_deep) or (is_at_border and inwards > 0)


@compiled(
    numba.void(
        *(types.Array(numba.float64, dimensions, "A") for dimensions in (1, 1, 2)),
        *(numba.float64[::1], numba.boolean[::1], numba.float64),
    )
)
def _correct(edges: Floats, speeds: Floats, spreads: Floats, box: Floats, is_hidden: Bools, variance: float) -> None:
    """Correct a track by the box that was found; hidden edges move with the opposite ones."""
    missed = box - edges
    for k in range(4):
        opposite = (k + 2) % 4
        moved = missed[k] if not is_hidden[k] else 0.0 if is_hidden[opposite] else missed[opposite]
        place, both, speed = spreads[k, 0], spreads[k, 1], spreads[k, 2]
        total = place + (4 if is_hidden[k] else 1) * variance
        edges[k] += place / total * moved
        speeds[k] += both / total * moved
        spreads[k, 0] = (1 - place / total) * place
        spreads[k, 1] = (1 - place / total) * both
        spreads[k, 2] = speed - both / total * both


@compiled(
    numba.int64(
        *(ROWS, numba.float64[:, ::1], GIVEN, numba.int64[:, ::1], numba.int64[::1], numba.float64, numba.int64),
        *(numba.int64[::1], CONSTANTS),
    )
)
def go_on(
    rows: Rows,
    votes: Floats,
    given: Given,
    hidden: Ints,
    track_of: Ints,
    time_s: float,
    next_id: int,
    origins: Ints,
    tuning: Tuning,
) -> int:
    """Move the tracks that were found to where they are, and confirm them; returns the next free id.

    Sets in `origins` the tracks that take a detection's mask; see `Tracks.renew`.
    """
    is_hidden = np.empty(4, np.bool_)
    for n in range(len(track_of)):
        i = track_of[n]
        if i < 0:
            continue
        row, box = rows[i], given.boxes[n]
        is_cut = hidden[i, n] > tuning.cut_share * row.area
        _find_hidden_edges(row.edges, box, given.size_hw, is_cut, tuning.cut_depth, is_hidden)
        _correct(row.edges, row.speeds, row.spreads, box, is_hidden, (tuning.jitter * size_of(row.edges)) ** 2)
        if not is_cut or given.masks.areas[n] >= tuning.shrunk * row.area:
            for k in range(2):
                both = row.edges[k] + row.edges[k + 2] if is_hidden.any() else box[k] + box[k + 2]
                row.anchor[k] = both / 2
            row.mask_box[:], row.area = given.masks.boxes[n], given.masks.areas[n]
            origins[i] = ~n
        row.seen_s, row.best = time_s, max(row.best, given.confidence[n])
        votes[i, given.classes[n]] += given.confidence[n]
        if row.id < 0 and (row.best >= tuning.birth or votes[i].sum() >= tuning.evidence):
            row.id = next_id
            next_id += 1
    return next_id


@compiled(
    numba.void(
        *(ROWS, numba.float64[::1], types.UniTuple(numba.int64, 2), numba.float64, numba.boolean[::1]),
        CONSTANTS,
    )
)
def expire(
    rows: Rows, covered: Floats, size_hw: tuple[int, int], time_s: float, is_gone: Bools, tuning: Tuning
) -> None:
    """Set in `is_gone` the tracks that have not been found for too long; what left the image waits at its border.

    `covered` is that of `matching.Compared`.
    """
    for i in range(len(rows)):
        row = rows[i]
        row.is_covered = row.seen_s < time_s and covered[i] > tuning.covered_share
        if row.seen_s >= time_s:
            continue
        is_outside = False
        for k in range(2):
            middle = (row.edges[k] + row.edges[k + 2]) / 2
            away = min(max(middle, 0.0), float(size_hw[1 - k])) - middle
            row.edges[k] += away
            row.edges[k + 2] += away
            is_outside |= away != 0
        if is_outside:
            row.speeds[:] = 0
        until_s = max(row.until_s, row.seen_s + tuning.lost_s)
        if row.is_covered:
            until_s = max(until_s, min(time_s + tuning.lost_s, row.seen_s + tuning.covered_s))
        if row.id < 0:
            until_s = row.seen_s + tuning.tentative_s
        row.until_s = until_s
        is_gone[i] |= time_s > until_s


@compiled(
    numba.int64(
        *(ROWS, numba.float64[:, ::1], GIVEN, numba.int64[::1], numba.int64, numba.float64, numba.float64),
        *(numba.int64, CONSTANTS),
    )
)
def begin(
    rows: Rows,
    votes: Floats,
    given: Given,
    found: Ints,
    first: int,
    time_s: float,
    least: float,
    next_id: int,
    tuning: Tuning,
) -> int:
    """Fill the rows from `first` on with what is found and new; returns the next free id.

    Those of at least the confidence `least` are confirmed.
    """
    for k in range(len(found)):
        n, row = found[k], rows[first + k]
        box, size = given.boxes[n], size_of(given.boxes[n])
        row.edges[:] = box
        row.spreads[:, 0], row.spreads[:, 2] = (tuning.jitter * size) ** 2, (tuning.first_speed * size) ** 2
        row.anchor[0], row.anchor[1] = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        row.mask_box[:], row.area = given.masks.boxes[n], given.masks.areas[n]
        row.best, row.born_s, row.seen_s, row.id = given.confidence[n], time_s, time_s, -1
        votes[first + k, given.classes[n]] = given.confidence[n]
        if given.confidence[n] >= least:
            row.id = next_id
            next_id += 1
    return next_id
