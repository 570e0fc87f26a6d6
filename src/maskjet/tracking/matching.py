"""Which detection continues which track."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from scipy.optimize import linear_sum_assignment

from maskjet.jit import compiled, types
from maskjet.tracking.strips import Ints, count_inside, count_shared
from maskjet.tracking.tracks import CONSTANTS, GIVEN, ROWS, Floats, Given, Rows, Tracks, size_of
from maskjet.tracking.tuning import Tuning


class Compared(NamedTuple):
    """Tracks, where they are predicted, beside detections."""

    similarity: Floats
    """float64 [t, n]: 0..1."""
    hidden: Ints
    """int64 [t, n]: pixels of a track's mask outside the image, or under detections other than this one."""
    covered: Floats
    """float64 [t]: share of a track's mask outside the image or under detections."""


def compare(tracks: Tracks, given: Given, tuning: Tuning) -> Compared:
    """Compare the masks and boxes of all tracks and detections; what is hidden may have any shape."""
    masks, moves = tracks.masks()
    shared, inside = count_shared(masks, moves, given.masks), count_inside(masks, moves, given.size_hw)
    similarity, hidden = box_iou(tracks.rows["edges"], given.boxes), np.empty_like(shared)
    covered = np.empty(len(tracks))
    _weigh(shared, masks.areas, inside, tracks.votes, given, tuning, similarity, hidden, covered)
    return Compared(similarity, hidden, covered)


@compiled(
    numba.void(
        *(numba.int64[:, ::1], numba.int64[::1], numba.int64[::1], numba.float64[:, ::1], GIVEN, CONSTANTS),
        *(numba.float64[:, ::1], numba.int64[:, ::1], numba.float64[::1]),
    )
)
def _weigh(
    shared: Ints,
    areas: Ints,
    inside: Ints,
    votes: Floats,
    given: Given,
    tuning: Tuning,
    similarity: Floats,
    hidden: Ints,
    covered: Floats,
) -> None:
    """Fill the fields of `Compared`; `similarity` is that of the boxes before."""
    for i in range(len(areas)):
        area, lost, class_id = areas[i], areas[i] - inside[i], votes[i].argmax()
        for j in range(len(given.classes)):
            lost += shared[i, j] if given.confidence[j] >= tuning.solid else 0
        covered[i] = min(lost / max(area, 1), 1.0)
        for j in range(len(given.classes)):
            is_solid = given.confidence[j] >= tuning.solid
            hidden[i, j] = min(lost - shared[i, j] if is_solid else lost, area - shared[i, j])
            explained = min((shared[i, j] + hidden[i, j]) / max(area, 1), 1.0)
            of_masks = explained * shared[i, j] / max(given.masks.areas[j], 1)
            similarity[i, j] = tuning.mask_share * of_masks + (1 - tuning.mask_share) * similarity[i, j]
            if class_id != given.classes[j]:
                similarity[i, j] *= tuning.other_class


NEVER = -1e3
"""Score of pairs that don't go together, far below any sum of others."""


def assign(scores: Floats) -> tuple[Ints, Ints]:
    """The pairs of tracks and detections with the highest sum of scores [t, n]; `NEVER` where none may be."""
    i, j = linear_sum_assignment(scores, maximize=True)
    is_pair = scores[i, j] > 0
    return i[is_pair], j[is_pair]


_SCORING = (numba.float64, CONSTANTS, numba.float64[:, ::1])  # threshold, tuning, scores


@compiled(numba.int64(ROWS, numba.float64[:, ::1], numba.float64[::1], numba.float64, *_SCORING))
def score_confirmed(
    rows: Rows,
    similarity: Floats,
    confidence: Floats,
    time_s: float,
    threshold: float,
    tuning: Tuning,
    scores: Floats,
) -> int:
    """Score confirmed tracks with detections; returns how many pairs may go together. Lost ones take no weak things."""
    found = 0
    scores[:] = NEVER
    for i in range(len(rows)):
        if rows[i].id < 0:
            continue
        is_late = time_s - rows[i].seen_s > tuning.weak_s
        for j in range(len(confidence)):
            is_taken = confidence[j] >= tuning.low and not is_late and similarity[i, j] >= tuning.least_weak
            score = similarity[i, j] * (1 - tuning.confidence_share + tuning.confidence_share * confidence[j])
            if (is_taken or confidence[j] >= threshold) and score > tuning.least:
                scores[i, j] = score
                found += 1
    return found


@compiled(numba.int64(ROWS, numba.float64[:, ::1], numba.float64[::1], numba.int64[::1], *_SCORING))
def score_young(
    rows: Rows,
    similarity: Floats,
    confidence: Floats,
    track_of: Ints,
    threshold: float,
    tuning: Tuning,
    scores: Floats,
) -> int:
    """Score tracks that are not confirmed with detections that are left; returns how many pairs may go together."""
    found = 0
    scores[:] = NEVER
    for i in range(len(rows)):
        for j in range(len(confidence)):
            is_left = track_of[j] < 0 and confidence[j] >= min(threshold, tuning.low)
            if rows[i].id < 0 and is_left and similarity[i, j] > tuning.least_new:
                scores[i, j] = similarity[i, j]
                found += 1
    return found


_BOX = types.Array(numba.float64, 1, "A")


@compiled(
    numba.float64(*(_BOX, types.Array(numba.float64, 2, "A"), numba.int64, numba.boolean, _BOX, numba.int64, CONSTANTS))
)
def _fit(
    edges: Floats, spreads: Floats, area: int, is_covered: bool, box: Floats, box_area: int, tuning: Tuning
) -> float:
    """How well a thing fits the place and area of a lost track; `NEVER` if not at all.

    What comes out from behind something may be smaller.
    """
    sigmas, away = 0.0, 0.0
    for k in range(2):
        apart = (edges[k] + edges[k + 2] - box[k] - box[k + 2]) / 2
        sigmas += apart**2 / max((spreads[k, 0] + spreads[k + 2, 0]) / 2, 1e-6)
        away += apart**2
    away = np.sqrt(away) / size_of(edges) / tuning.return_sizes
    areas_apart = np.log(max(box_area, 1) / max(area, 1)) / np.log(tuning.return_areas)
    areas_apart = 0.0 if is_covered and areas_apart < 0 else abs(areas_apart)
    if max(np.sqrt(sigmas) / tuning.return_sigmas, away, areas_apart) < 1:
        return float(2 - away - areas_apart / 2)
    return NEVER


@compiled(numba.int64(ROWS, numba.float64[:, ::1], GIVEN, numba.int64[::1], *_SCORING))
def score_returns(
    rows: Rows, votes: Floats, given: Given, track_of: Ints, threshold: float, tuning: Tuning, scores: Floats
) -> int:
    """Score lost tracks with strong detections that are left, by place and area; returns how many may go together."""
    found = 0
    scores[:] = NEVER
    is_free = np.ones(len(rows), np.bool_)
    is_free[track_of[track_of >= 0]] = False
    for i in range(len(rows)):
        row = rows[i]
        if row.id < 0 or not is_free[i]:
            continue
        class_id = votes[i].argmax()
        for j in range(len(track_of)):
            if track_of[j] < 0 and given.confidence[j] >= threshold and given.classes[j] == class_id:
                thing = given.boxes[j], given.masks.areas[j]
                scores[i, j] = _fit(row.edges, row.spreads, row.area, row.is_covered, *thing, tuning)
                found += scores[i, j] > 0
    return found


@compiled(numba.int64(ROWS, numba.float64[:, ::1], numba.int64[::1], numba.float64, *_SCORING))
def score_adoptions(
    rows: Rows, votes: Floats, track_of: Ints, time_s: float, began_s: float, tuning: Tuning, scores: Floats
) -> int:
    """Score lost tracks with the young ones of detections [n], which may continue them; returns how many may."""
    found = 0
    scores[:] = NEVER
    for j in range(len(track_of)):
        if track_of[j] < 0:
            continue
        young = rows[track_of[j]]
        if time_s - young.born_s > tuning.adopt_s or young.born_s <= began_s:
            continue
        class_id = votes[track_of[j]].argmax()
        for i in range(len(rows)):
            row = rows[i]
            if row.id >= 0 and row.seen_s < min(time_s, young.born_s) and votes[i].argmax() == class_id:
                scores[i, j] = _fit(row.edges, row.spreads, row.area, row.is_covered, young.edges, young.area, tuning)
                found += scores[i, j] > 0
    return found


@compiled("float64[:, ::1](Array(float64, 2, 'A'), Array(float64, 2, 'A'))")
def box_iou(boxes: Floats, others: Floats) -> Floats:
    """Intersection over union of boxes [n, 4] and [m, 4], [n, m]."""
    iou = np.empty((len(boxes), len(others)))
    for i in range(len(boxes)):
        area = (boxes[i, 2] - boxes[i, 0]) * (boxes[i, 3] - boxes[i, 1])
        for j in range(len(others)):
            width = max(min(boxes[i, 2], others[j, 2]) - max(boxes[i, 0], others[j, 0]), 0.0)
            height = max(min(boxes[i, 3], others[j, 3]) - max(boxes[i, 1], others[j, 1]), 0.0)
            other_area = (others[j, 2] - others[j, 0]) * (others[j, 3] - others[j, 1])
            iou[i, j] = width * height / max(area + other_area - width * height, 1e-9)
    return iou
