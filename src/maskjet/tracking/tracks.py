"""The tracks of a tracker: where each thing is, how it moves, its mask, and the votes on its class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.jit import compiled
from maskjet.tracking.strips import Ints, Strips, join_strips
from maskjet.tracking.tuning import Tuning

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_LEAST_AREA = 16.0  # pixels of a box, so that no size is 0
_TRACK = np.dtype(
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
    ]
)


class Tracks:
    """Tracks with their masks and votes; none at first.

    Args:
        classes: Number of classes known so far.
    """

    def __init__(self, classes: int = 0) -> None:
        self.rows: NDArray[Any] = np.zeros(0, _TRACK)
        """A row per track."""
        self.votes: Floats = np.zeros((0, max(classes, 1)))
        """float64 [t, c]: summed confidence of each class."""
        self._masks: list[NDArray[np.int32]] = []

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def classes(self) -> Ints:
        """int64 [t]: the class with the most votes."""
        return np.asarray(self.votes.argmax(1))

    def keep(self, chosen: Bools) -> None:
        """Drop the tracks that are not chosen, bool [t]."""
        self.rows, self.votes = self.rows[chosen], self.votes[chosen]
        self._masks = [mask for mask, is_chosen in zip(self._masks, chosen.tolist(), strict=True) if is_chosen]

    def begin(self, boxes: Floats, time_s: float, tuning: Tuning) -> Ints:
        """Append tracks of boxes, float64 [n, 4] in pixels, without masks and votes; returns their rows, int64 [n]."""
        new, sizes, before = np.zeros(len(boxes), _TRACK), sizes_of(boxes)[:, None], len(self)
        new["edges"], new["id"], new["born_s"], new["seen_s"] = boxes, -1, time_s, time_s
        new["spreads"][..., 0], new["spreads"][..., 2] = (
            (tuning.jitter * sizes) ** 2,
            (tuning.first_speed * sizes) ** 2,
        )
        self.rows = np.concatenate([self.rows, new])
        self.votes = np.concatenate([self.votes, np.zeros((len(boxes), self.votes.shape[1]))])
        self._masks += [np.empty((0, 3), np.int32)] * len(boxes)
        return np.arange(before, len(self))

    def predict(self, passed_s: float, is_lost: Bools, tuning: Tuning) -> None:
        """Move the tracks on by their speeds; those that are lost, bool [t], slow down."""
        rows = self.rows
        still_s = np.where(rows["is_covered"], tuning.covered_still_s, tuning.still_s)
        slowing = np.where(is_lost, np.exp(-passed_s / still_s), 1)
        shrinking = np.where(is_lost, np.exp(-10 * passed_s / tuning.still_s), 1)
        _predict(rows["edges"], rows["speeds"], rows["spreads"], slowing, shrinking, passed_s, tuning.acceleration)

    def correct(self, chosen: Ints, boxes: Floats, is_hidden: Bools, tuning: Tuning) -> None:
        """Correct tracks, int64 [n], by the boxes that were found, [n, 4]; hidden edges move with the opposite ones."""
        rows = self.rows
        variances = (tuning.jitter * sizes_of(rows["edges"][chosen])) ** 2
        _correct(rows["edges"], rows["speeds"], rows["spreads"], chosen, boxes, is_hidden, variances)

    def take_masks(self, chosen: Ints, boxes: Floats, found: Strips, positions: Ints) -> None:
        """Give tracks, int64 [n], the masks at some positions, which belong to boxes [n, 4]."""
        self.rows["anchor"][chosen] = (boxes[:, :2] + boxes[:, 2:]) / 2
        self.rows["mask_box"][chosen], self.rows["area"][chosen] = found.boxes[positions], found.areas[positions]
        for row, position in zip(chosen.tolist(), positions.tolist(), strict=True):
            self._masks[row] = found.strips[found.firsts[position] : found.firsts[position + 1]]

    def masks(self) -> tuple[Strips, Ints]:
        """The masks where they were found, and by how many pixels they have moved since, int64 [t, 2]."""
        edges = self.rows["edges"]
        moves = np.rint((edges[:, :2] + edges[:, 2:]) / 2 - self.rows["anchor"]).astype(np.int64)
        return join_strips(self._masks, self.rows["mask_box"].copy(), self.rows["area"].copy()), moves


@compiled(
    "void(Array(float64, 2, 'A'), Array(float64, 2, 'A'), Array(float64, 3, 'A'), float64[::1], float64[::1], float64,"
    " float64)"
)
def _predict(
    edges: Floats,
    speeds: Floats,
    spreads: Floats,
    slowing: Floats,
    shrinking: Floats,
    passed_s: float,
    acceleration: float,
) -> None:
    for i in range(len(edges)):
        for k in range(2):
            middle = slowing[i] * (speeds[i, k] + speeds[i, k + 2]) / 2
            half = shrinking[i] * (speeds[i, k + 2] - speeds[i, k]) / 2
            speeds[i, k], speeds[i, k + 2] = middle - half, middle + half
            edges[i, k] += speeds[i, k] * passed_s
            edges[i, k + 2] += speeds[i, k + 2] * passed_s
        area = max(edges[i, 2] - edges[i, 0], 0.0) * max(edges[i, 3] - edges[i, 1], 0.0)
        noise = acceleration**2 * max(area, _LEAST_AREA)
        for k in range(4):
            _, both, speed = spreads[i, k]
            spreads[i, k, 0] += passed_s * (2 * both + passed_s * speed) + noise * passed_s**3 / 3
            spreads[i, k, 1] += passed_s * speed + noise * passed_s**2 / 2
            spreads[i, k, 2] += noise * passed_s


@compiled(
    "void(Array(float64, 2, 'A'), Array(float64, 2, 'A'), Array(float64, 3, 'A'), int64[::1], float64[:, ::1],"
    " boolean[:, ::1], float64[::1])"
)
def _correct(
    edges: Floats,
    speeds: Floats,
    spreads: Floats,
    chosen: Ints,
    boxes: Floats,
    is_hidden: Bools,
    variances: Floats,
) -> None:
    for n, i in enumerate(chosen):
        missed = boxes[n] - edges[i]
        for k in range(4):
            opposite = (k + 2) % 4
            moved = missed[k] if not is_hidden[n, k] else 0.0 if is_hidden[n, opposite] else missed[opposite]
            place, both, speed = spreads[i, k]
            total = place + (4 if is_hidden[n, k] else 1) * variances[n]
            edges[i, k] += place / total * moved
            speeds[i, k] += both / total * moved
            spreads[i, k, 0] = (1 - place / total) * place
            spreads[i, k, 1] = (1 - place / total) * both
            spreads[i, k, 2] = speed - both / total * both


def sizes_of(boxes: Floats) -> Floats:
    """The roots of the areas of boxes [n, 4], in pixels."""
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    return np.asarray(np.sqrt(np.maximum(sides[:, 0] * sides[:, 1], _LEAST_AREA)))
