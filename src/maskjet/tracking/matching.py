"""Association of detections with tracks."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from maskjet.jit import Ints, compiled
from maskjet.masks.strips import count_inside, count_shared, types
from maskjet.tracking.tracks import BOX, CONSTANTS, GIVEN, TRACKS, Floats, Given, Tracks, place_masks, size_of
from maskjet.tracking.tuning import Tuning

NEVER = -1e3
"""Score of forbidden pairs, far below any sum of valid scores."""


class Compared(NamedTuple):
    """Comparison of t predicted tracks with n detections."""

    similarity: Floats
    """float64 [t, n]: similarity of masks and boxes, 0..1."""
    hidden: Ints
    """int64 [t, n]: pixels of a track's mask hidden by the image border or by other detections."""
    covered: Floats
    """float64 [t]: share of a track's mask outside the image or covered by detections, 0..1."""


COMPARED = types.NamedTuple((numba.float64[:, ::1], numba.int64[:, ::1], numba.float64[::1]), Compared)
"""Type of `Compared` in compiled functions."""


@compiled(numba.float64[:, ::1](types.Array(numba.float64, 2, "A"), types.Array(numba.float64, 2, "A")))
def box_iou(boxes: Floats, others: Floats) -> Floats:
    """Intersection over union of all pairs of boxes [n, 4] and [m, 4]: float64 [n, m]."""
    iou = np.empty((len(boxes), len(others)))
    for i in range(len(boxes)):
        area = (boxes[i, 2] - boxes[i, 0]) * (boxes[i, 3] - boxes[i, 1])
        for j in range(len(others)):
            width = max(min(boxes[i, 2], others[j, 2]) - max(boxes[i, 0], others[j, 0]), 0.0)
            height = max(min(boxes[i, 3], others[j, 3]) - max(boxes[i, 1], others[j, 1]), 0.0)
            other_area = (others[j, 2] - others[j, 0]) * (others[j, 3] - others[j, 1])
            iou[i, j] = width * height / max(area + other_area - width * height, 1e-9)
    return iou


@compiled(COMPARED(TRACKS, GIVEN, CONSTANTS))
def compare(tracks: Tracks, given: Given, tuning: Tuning) -> Compared:
    """Compare masks and boxes of all tracks and detections; hidden mask pixels count as explained."""
    masks, moves, edges = place_masks(tracks)
    shared, inside = count_shared(masks, moves, given.masks), count_inside(masks, moves, given.size_hw)
    similarity, hidden, covered = box_iou(edges, given.boxes), np.empty_like(shared), np.empty(len(shared))
    for i in range(len(shared)):
        area, lost, class_id = masks.areas[i], masks.areas[i] - inside[i], tracks.votes[i].argmax()
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
    return Compared(similarity, hidden, covered)


@compiled(numba.int64[::1](types.Array(numba.float64, 2, "A")))
def assign(scores: Floats) -> Ints:
    """Assign rows to columns with the highest sum of scores [n, m]; returns rows, -1 for none.

    By shortest augmenting paths (Jonker and Volgenant 1987), once all rows have the best column that is left for them.
    """
    rows, columns = scores.shape
    width = columns + rows  # plus a dummy column per row, to leave it unassigned
    row_of, prices = np.full(width + 1, -1), np.zeros(width + 1)  # augmenting paths begin at the last column
    gains = np.full(rows, -NEVER)
    is_left = np.zeros(rows, np.bool_)
    for row in range(rows):
        best = columns + row
        for k in range(columns):
            if -scores[row, k] < gains[row]:
                best, gains[row] = k, -scores[row, k]
        is_left[row] = row_of[best] >= 0
        row_of[best] = row_of[best] if is_left[row] else row
    for first in np.flatnonzero(is_left):
        least, before, is_done = np.full(width, np.inf), np.full(width, width), np.zeros(width + 1, np.bool_)
        column, row_of[width] = width, first
        while row_of[column] >= 0:
            is_done[column], row, nearest = True, row_of[column], -1
            for k in range(width):
                if is_done[k] or (k >= columns and k != columns + row):
                    continue
                cost = (-scores[row, k] if k < columns else -NEVER) - gains[row] - prices[k]
                if cost < least[k]:
                    least[k], before[k] = cost, column
            for k in range(width):
                if not is_done[k] and (nearest < 0 or least[k] < least[nearest]):
                    nearest = k
            step = least[nearest]
            for k in range(width + 1):
                if is_done[k]:
                    gains[row_of[k]] += step
                    prices[k] -= step
                elif k < width:
                    least[k] -= step
            column = nearest
        while column != width:
            row_of[column] = row_of[before[column]]
            column = before[column]
    for column in range(columns):
        if row_of[column] >= 0 and scores[row_of[column], column] <= 0:
            row_of[column] = -1
    return row_of[:columns]


@compiled(numba.void(numba.float64[:, ::1], numba.int64[::1]))
def _take(scores: Floats, track_of: Ints) -> None:
    """Write the assigned tracks into `track_of`, and reset the scores."""
    for j, i in enumerate(assign(scores)):
        if i >= 0:
            track_of[j] = i
    scores[:] = NEVER


@compiled(numba.float64(TRACKS, numba.int64, BOX, numba.int64, numba.int64, CONSTANTS))
def _fit(tracks: Tracks, i: int, box: Floats, area: int, class_id: int, tuning: Tuning) -> float:
    """Score a detection against class, place and area of lost track i, smaller ones if it was hidden; or `NEVER`."""
    row, sigmas, away = tracks.rows[i], 0.0, 0.0
    if tracks.votes[i].argmax() != class_id:
        return NEVER
    for k in range(2):
        apart = (row.edges[k] + row.edges[k + 2] - box[k] - box[k + 2]) / 2
        sigmas += apart**2 / max((row.spreads[k, 0] + row.spreads[k + 2, 0]) / 2, 1e-6)
        away += apart**2
    away = np.sqrt(away) / size_of(row.edges) / tuning.return_sizes
    areas_apart = np.log(max(area, 1) / max(row.area, 1)) / np.log(tuning.return_areas)
    areas_apart = 0.0 if row.is_covered and areas_apart < 0 else abs(areas_apart)
    if max(np.sqrt(sigmas) / tuning.return_sigmas, away, areas_apart) < 1:
        return float(2 - away - areas_apart / 2)
    return NEVER


@compiled(numba.int64[::1](TRACKS, GIVEN, numba.float64[:, ::1], numba.float64, numba.float64, CONSTANTS))
def match(tracks: Tracks, given: Given, similarity: Floats, time_s: float, threshold: float, tuning: Tuning) -> Ints:
    """Match detections with tracks: int64 [n], -1 for none.

    First of confirmed tracks, where lost ones take no weak detections; then of others; then of lost ones, by place and
    area.
    """
    rows, confidence, track_of = tracks.rows, given.confidence, np.full(len(given.classes), -1)
    scores = np.full(similarity.shape, NEVER)
    for i in range(len(rows)):
        if rows[i].id < 0:
            continue
        is_late = time_s - rows[i].seen_s > tuning.weak_s
        for j in range(len(confidence)):
            is_taken = confidence[j] >= tuning.low and not is_late and similarity[i, j] >= tuning.least_weak
            score = similarity[i, j] * (1 - tuning.confidence_share + tuning.confidence_share * confidence[j])
            if (is_taken or confidence[j] >= threshold) and score > tuning.least:
                scores[i, j] = score
    _take(scores, track_of)
    is_free = np.ones(len(rows), np.bool_)
    is_free[track_of[track_of >= 0]] = False
    for i in range(len(rows)):
        for j in range(len(confidence)):
            is_usable = confidence[j] >= min(threshold, tuning.low) and similarity[i, j] > tuning.least_new
            if rows[i].id < 0 and track_of[j] < 0 and is_usable:
                scores[i, j] = similarity[i, j]
    _take(scores, track_of)
    for i in range(len(rows)):
        for j in range(len(confidence)):
            if rows[i].id >= 0 and is_free[i] and track_of[j] < 0 and confidence[j] >= threshold:
                thing = given.boxes[j], given.masks.areas[j], given.classes[j]
                scores[i, j] = _fit(tracks, i, *thing, tuning)
    _take(scores, track_of)
    return track_of


@compiled(numba.boolean[::1](TRACKS, numba.int64[::1], numba.float64, numba.float64, CONSTANTS))
def adopt(tracks: Tracks, track_of: Ints, time_s: float, began_s: float, tuning: Tuning) -> NDArray[np.bool_]:
    """Merge young matched tracks into the lost tracks that they fit; returns the lost ones, bool [t]."""
    rows, votes, is_adopted = tracks.rows, tracks.votes, np.zeros(len(tracks.rows), np.bool_)
    young = track_of[track_of >= 0]
    young = young[(time_s - rows["born_s"][young] <= tuning.adopt_s) & (rows["born_s"][young] > began_s)]
    scores = np.full((len(rows), len(young)), NEVER)
    for i in range(len(rows)):
        for j, new in enumerate(young):
            if rows[i].id >= 0 and rows[i].seen_s < min(time_s, rows[new].born_s):
                scores[i, j] = _fit(tracks, i, rows[new].edges, rows[new].area, votes[new].argmax(), tuning)
    for j, old in enumerate(assign(scores)):
        if old >= 0:
            new = young[j]
            rows[new].id, rows[new].born_s, is_adopted[old] = rows[old].id, rows[old].born_s, True
            votes[new] += votes[old]
    return is_adopted
