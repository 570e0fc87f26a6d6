"""State of tracks: positions, speeds, masks and class votes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from maskjet.jit import Bools, Ints, compiled
from maskjet.masks.strips import STRIPS, Strips, gather, types
from maskjet.tracking.tuning import Tuning

Floats = NDArray[np.float64]
Rows = NDArray[Any]
_LEAST_AREA = 1.0  # pixels; smallest area from which a size is computed
TRACK = np.dtype(
    [
        ("edges", np.float64, 4),  # x1, y1, x2, y2 in pixels; each has a Kalman filter of its own
        ("speeds", np.float64, 4),  # of the edges, in pixels per second
        ("spreads", np.float64, (4, 3)),  # per edge: variance of place, covariance, variance of speed
        ("anchor", np.float64, 2),  # (x, y): centre of the box at the time of the mask
        ("mask_box", np.int64, 4),  # tight box of the mask, in pixels
        ("area", np.int64),  # pixels of the mask
        ("id", np.int64),  # -1 until confirmed
        ("best", np.float64),  # highest confidence of its detections
        ("born_s", np.float64),
        ("seen_s", np.float64),  # time of its last detection
        ("until_s", np.float64),  # expiry time, unless it is found again
        ("is_covered", np.bool_),  # lost, and its predicted place is hidden by detections
    ],
    align=True,
)
ROWS = numba.from_dtype(TRACK)[::1]
"""Type of `Tracks.rows` in compiled functions."""
BOX = types.Array(numba.float64, 1, "A")
"""Type of a box, x1, y1, x2, y2, in compiled functions."""
CONSTANTS = types.NamedUniTuple(numba.float64, len(Tuning._fields), Tuning)
"""Type of `Tuning` in compiled functions."""


class Given(NamedTuple):
    """The n detections of a frame, as arrays for compiled functions."""

    size_hw: tuple[int, int]
    """Size of the image, (height, width) in pixels."""
    boxes: Floats
    """float64 [n, 4]: x1, y1, x2, y2 in pixels, clamped to the image."""
    confidence: Floats
    """float64 [n]: confidences, 0..1."""
    classes: Ints
    """int64 [n]: classes, as columns of `Tracks.votes`."""
    is_moved: Bools
    """bool [n]: whether they were moved from another frame; such ones begin no track and have no vote."""
    masks: Strips
    """Masks of the n detections as strips."""


GIVEN = types.NamedTuple(
    (
        types.UniTuple(numba.int64, 2),
        numba.float64[:, ::1],
        numba.float64[::1],
        numba.int64[::1],
        numba.boolean[::1],
        STRIPS,
    ),
    Given,
)
"""Type of `Given` in compiled functions."""


class Tracks(NamedTuple):
    """Tracks with their masks and votes."""

    rows: Rows
    """`TRACK` [t]: a row per track."""
    votes: Floats
    """float64 [t, c]: votes of each track, confidences summed by class."""
    strips: NDArray[np.int32]
    """int32 [s, 3]: strips of all masks, at the place of their detection; see `Strips`."""
    firsts: Ints
    """int64 [t + 1]: offsets; `strips[firsts[i] : firsts[i + 1]]` are the mask of track i."""


TRACKS = types.NamedTuple((ROWS, numba.float64[:, ::1], numba.int32[:, ::1], numba.int64[::1]), Tracks)
"""Type of `Tracks` in compiled functions."""


@compiled(TRACKS(numba.int64))
def no_tracks(classes: int) -> Tracks:
    """Empty `Tracks`, with vote columns for `classes` classes."""
    return Tracks(np.zeros(0, TRACK), np.zeros((0, classes)), np.empty((0, 3), np.int32), np.zeros(1, np.int64))


@compiled(types.Tuple((STRIPS, numba.int64[:, ::1], numba.float64[:, ::1]))(TRACKS))
def place_masks(tracks: Tracks) -> tuple[Strips, Ints, Floats]:
    """Masks as detected, their movement since, int64 [t, 2] (x, y) pixels, and predicted boxes, float64 [t, 4]."""
    count = len(tracks.rows)
    boxes, areas, moves = np.empty((count, 4), np.int64), np.empty(count, np.int64), np.empty((count, 2), np.int64)
    edges = np.empty((count, 4))
    for i in range(count):
        row = tracks.rows[i]
        boxes[i], areas[i], edges[i] = row.mask_box, row.area, row.edges
        for k in range(2):
            moves[i, k] = np.int64(np.rint((row.edges[k] + row.edges[k + 2]) / 2 - row.anchor[k]))
    return Strips(tracks.strips, tracks.firsts, boxes, areas), moves, edges


@compiled(numba.float64(BOX))
def size_of(box: Floats) -> float:
    """Size of a box: the square root of its area, in pixels."""
    area = max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)
    return float(np.sqrt(max(area, _LEAST_AREA)))


@compiled(numba.void(ROWS, numba.float64, numba.float64, CONSTANTS))
def predict(rows: Rows, passed_s: float, last_s: float, tuning: Tuning) -> None:
    """Predict tracks by their speeds; those not detected at `last_s`, the last frame, slow down."""
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
        *(BOX, numba.float64[::1], types.UniTuple(numba.int64, 2)),
        *(numba.boolean, numba.float64, numba.boolean[::1]),
    )
)
def _find_hidden_edges(
    edges: Floats, box: Floats, size_hw: tuple[int, int], is_cut: bool, depth: float, is_hidden: Bools
) -> None:
    """Find edges that a detection does not show, bool [4]: well inside, if it is cut, or at the border."""
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
    """Kalman update of a track by a detected box; hidden edges move with the opposite ones."""
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
    types.Tuple((numba.int64, numba.int64[::1]))(
        *(TRACKS, GIVEN, numba.int64[:, ::1], numba.int64[::1], numba.float64, numba.int64, CONSTANTS)
    )
)
def go_on(
    tracks: Tracks, given: Given, hidden: Ints, track_of: Ints, time_s: float, next_id: int, tuning: Tuning
) -> tuple[int, Ints]:
    """Update the matched tracks with their detections, and confirm them.

    Returns:
        The next free id; and int64 [t]: ~n for a track that takes detection n's mask, i for track i that keeps its own.
    """
    rows, votes, origins = tracks.rows, tracks.votes, np.arange(len(tracks.rows))
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
        row.seen_s = time_s
        if given.is_moved[n]:
            continue
        row.best = max(row.best, given.confidence[n])
        votes[i, given.classes[n]] += given.confidence[n]
        if row.id < 0 and (row.best >= tuning.birth or votes[i].sum() >= tuning.evidence):
            row.id = next_id
            next_id += 1
    return next_id, origins


@compiled(
    numba.void(
        *(ROWS, numba.float64[::1], types.UniTuple(numba.int64, 2), numba.float64, numba.boolean[::1]),
        CONSTANTS,
    )
)
def expire(
    rows: Rows, covered: Floats, size_hw: tuple[int, int], time_s: float, is_gone: Bools, tuning: Tuning
) -> None:
    """Mark expired tracks in `is_gone`; tracks that left the image wait at its border.

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
    types.Tuple((TRACKS, numba.int64))(
        *(TRACKS, GIVEN, numba.boolean[::1], numba.int64[::1], numba.int64[::1], numba.float64, numba.float64),
        *(numba.float64, numba.int64, CONSTANTS),
    )
)
def renew(
    tracks: Tracks,
    given: Given,
    is_gone: Bools,
    origins: Ints,
    track_of: Ints,
    time_s: float,
    threshold: float,
    instant: float,
    next_id: int,
    tuning: Tuning,
) -> tuple[Tracks, int]:
    """Drop the tracks in `is_gone`, and start tracks for unmatched detections of at least `threshold`.

    Begun ones of at least the confidence `instant` are confirmed. `track_of` is changed to the new rows; `origins` are
    those of `go_on`.

    Returns:
        The tracks, and the next free id.
    """
    new = np.flatnonzero((track_of < 0) & (given.confidence >= threshold) & ~given.is_moved)
    kept = np.flatnonzero(~is_gone)
    count, taken = len(kept) + len(new), np.concatenate((origins[kept], ~new))
    rows, votes = np.zeros(count, TRACK), np.zeros((count, tracks.votes.shape[1]))
    places = np.full(len(tracks.rows), -1)
    for k, i in enumerate(kept):
        rows[k], votes[k], places[i] = tracks.rows[i], tracks.votes[i], k
    for n in range(len(track_of)):
        track_of[n] = places[track_of[n]] if track_of[n] >= 0 else -1
    for k, thing in enumerate(new):
        n = int(thing)
        row, box, size = rows[len(kept) + k], given.boxes[n], size_of(given.boxes[n])
        row.edges[:] = box
        row.spreads[:, 0], row.spreads[:, 2] = (tuning.jitter * size) ** 2, (tuning.first_speed * size) ** 2
        row.anchor[0], row.anchor[1] = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        row.mask_box[:], row.area = given.masks.boxes[n], given.masks.areas[n]
        row.best, row.born_s, row.seen_s, row.id = given.confidence[n], time_s, time_s, -1
        votes[len(kept) + k, given.classes[n]] = given.confidence[n]
        track_of[n] = len(kept) + k
        if given.confidence[n] >= instant:
            row.id = next_id
            next_id += 1
    strips, firsts = gather(tracks.strips, tracks.firsts, given.masks.strips, given.masks.firsts, taken)
    return Tracks(rows, votes, strips, firsts), next_id
