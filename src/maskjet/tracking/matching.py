"""Which detection continues which track."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

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
    area, (masks, moves) = tracks.rows["area"][:, None], tracks.masks()
    shared = count_shared(masks, moves, given.masks)
    is_solid = given.confidence >= tuning.solid
    lost = shared[:, is_solid].sum(1, keepdims=True) + area - count_inside(masks, moves, given.size_hw)[:, None]
    hidden = np.minimum(np.where(is_solid, lost - shared, lost), area - shared)
    explained = np.minimum((shared + hidden) / np.maximum(area, 1), 1)
    of_masks = explained * shared / np.maximum(given.masks.areas, 1)
    of_boxes = box_iou(tracks.rows["edges"], given.boxes)
    similarity = tuning.mask_share * of_masks + (1 - tuning.mask_share) * of_boxes
    similarity[tracks.classes[:, None] != given.classes] *= tuning.other_class
    return Compared(similarity, hidden, np.minimum(lost / np.maximum(area, 1), 1)[:, 0])


def score_returns(tracks: Tracks, lost: Ints, boxes: Floats, areas: Ints, classes: Ints, tuning: Tuning) -> Floats:
    """How well things, [n], fit the place and area of lost tracks, int64 [t]: float64 [t, n], 0 if not at all.

    What comes out from behind something may be smaller.
    """
    rows = tracks.rows[lost]
    edges, spreads = rows["edges"], rows["spreads"][..., 0]
    away = (edges[:, None, :2] + edges[:, None, 2:] - boxes[:, :2] - boxes[:, 2:]) / 2
    variance = np.maximum((spreads[:, None, :2] + spreads[:, None, 2:]) / 2, 1e-6)
    sigmas = np.sqrt((away**2 / variance).sum(-1)) / tuning.return_sigmas
    sizes = np.sqrt((away**2).sum(-1)) / sizes_of(edges)[:, None] / tuning.return_sizes
    ratio = np.maximum(areas, 1) / np.maximum(rows["area"], 1)[:, None]
    areas_apart = np.log(ratio) / math.log(tuning.return_areas)
    is_partly_seen = rows["is_covered"][:, None] & (areas_apart < 0)
    areas_apart = np.where(is_partly_seen, 0, np.abs(areas_apart))
    fits = (np.maximum(np.maximum(sigmas, sizes), areas_apart) < 1) & (tracks.classes[lost, None] == classes)
    return np.where(fits, 2 - sizes - areas_apart / 2, 0)


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


def box_iou(boxes: Floats, others: Floats) -> Floats:
    """Intersection over union of boxes [n, 4] and [m, 4], [n, m]."""
    sides = np.minimum(boxes[:, None, 2:], others[:, 2:]) - np.maximum(boxes[:, None, :2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), axis=2)
    areas, other_areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1), np.prod(others[:, 2:] - others[:, :2], axis=1)
    return np.asarray(shared / np.maximum(areas[:, None] + other_areas - shared, 1e-9))
