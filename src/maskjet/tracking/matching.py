"""Which detection continues which track."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from maskjet.jit import compiled
from maskjet.tracking.strips import Ints, Strips, count_inside, count_shared
from maskjet.tracking.tracks import Bools, Floats, Tracks, sizes_of
from maskjet.tracking.tuning import Tuning


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
    is_solid = given.confidence >= tuning.solid
    of_tracks, of_found = (masks.areas, inside, tracks.classes), (given.masks.areas, is_solid, given.classes)
    constants = tuning.mask_share, tuning.other_class
    _weigh(shared, *of_tracks, *of_found, *constants, similarity, hidden, covered)
    return Compared(similarity, hidden, covered)


@compiled(
    "void(int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1], int64[::1], float64, float64,"
    " float64[:, ::1], int64[:, ::1], float64[::1])"
)
def _weigh(
    shared: Ints,
    areas: Ints,
    inside: Ints,
    classes: Ints,
    other_areas: Ints,
    is_solid: Bools,
    other_classes: Ints,
    mask_share: float,
    other_class: float,
    similarity: Floats,
    hidden: Ints,
    covered: Floats,
) -> None:
    """Fill the fields of `Compared`; `similarity` is that of the boxes before."""
    for i in range(len(areas)):
        area, lost = areas[i], areas[i] - inside[i]
        for j in range(len(other_areas)):
            lost += shared[i, j] if is_solid[j] else 0
        covered[i] = min(lost / max(area, 1), 1.0)
        for j in range(len(other_areas)):
            hidden[i, j] = min(lost - shared[i, j] if is_solid[j] else lost, area - shared[i, j])
            explained = min((shared[i, j] + hidden[i, j]) / max(area, 1), 1.0)
            of_masks = explained * shared[i, j] / max(other_areas[j], 1)
            similarity[i, j] = mask_share * of_masks + (1 - mask_share) * similarity[i, j]
            if classes[i] != other_classes[j]:
                similarity[i, j] *= other_class


def score_returns(tracks: Tracks, lost: Ints, boxes: Floats, areas: Ints, classes: Ints, tuning: Tuning) -> Floats:
    """How well things, [n], fit the place and area of lost tracks, int64 [t]: float64 [t, n], 0 if not at all.

    What comes out from behind something may be smaller.
    """
    rows, scores = tracks.rows[lost], np.zeros((len(lost), len(boxes)))
    of_tracks = rows["edges"], rows["spreads"], sizes_of(rows["edges"]), rows["area"], rows["is_covered"]
    constants = tuning.return_sigmas, tuning.return_sizes, tuning.return_areas
    _score_returns(*of_tracks, tracks.classes[lost], boxes, areas, classes, *constants, scores)
    return scores


@compiled(
    "void(Array(float64, 2, 'A'), Array(float64, 3, 'A'), float64[::1], Array(int64, 1, 'A'), Array(boolean, 1, 'A'),"
    " int64[::1], Array(float64, 2, 'A'), Array(int64, 1, 'A'), int64[::1], float64, float64, float64, float64[:, ::1])"
)
def _score_returns(
    edges: Floats,
    spreads: Floats,
    sizes: Floats,
    areas: Ints,
    is_covered: Bools,
    classes: Ints,
    boxes: Floats,
    other_areas: Ints,
    other_classes: Ints,
    most_sigmas: float,
    most_sizes: float,
    most_areas: float,
    scores: Floats,
) -> None:
    for i in range(len(edges)):
        for j in range(len(boxes)):
            if classes[i] != other_classes[j]:
                continue
            sigmas, away = 0.0, 0.0
            for k in range(2):
                apart = (edges[i, k] + edges[i, k + 2] - boxes[j, k] - boxes[j, k + 2]) / 2
                sigmas += apart**2 / max((spreads[i, k, 0] + spreads[i, k + 2, 0]) / 2, 1e-6)
                away += apart**2
            away = np.sqrt(away) / sizes[i] / most_sizes
            areas_apart = np.log(max(other_areas[j], 1) / max(areas[i], 1)) / np.log(most_areas)
            areas_apart = 0.0 if is_covered[i] and areas_apart < 0 else abs(areas_apart)
            if max(np.sqrt(sigmas) / most_sigmas, away, areas_apart) < 1:
                scores[i, j] = 2 - away - areas_apart / 2


def assign(scores: Floats, least: float) -> tuple[Ints, Ints]:
    """The pairs of tracks and detections with the highest sum of scores [t, n], all above `least`, at least 0."""
    if not scores.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    chosen = np.where(scores > least, scores, -1e3)
    i, j = linear_sum_assignment(chosen, maximize=True)
    is_pair = chosen[i, j] > 0
    return i[is_pair], j[is_pair]


def find_hidden_edges(tracks: Tracks, chosen: Ints, found: Ints, given: Given, is_cut: Bools, depth: float) -> Bools:
    """Which edges of tracks, int64 [n], are not those of their detections, int64 [n]: bool [n, 4].

    Those well within the predicted ones, if the thing is cut, bool [n]; and those at the image's border.
    """
    edges, boxes, (height, width) = tracks.rows["edges"][chosen], given.boxes[found], given.size_hw
    inwards = (boxes - edges) * (1, 1, -1, -1)
    sides = np.hstack([edges[:, 2:] - edges[:, :2]] * 2)
    is_at_border = np.concatenate([boxes[:, :2] <= 1, boxes[:, 2:] >= (width - 1, height - 1)], axis=1)
    return np.asarray((is_cut[:, None] & (inwards > depth * sides)) | (is_at_border & (inwards > 0)))


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
