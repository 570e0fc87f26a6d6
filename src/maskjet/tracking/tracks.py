"""The tracks of a tracker: where each thing is, how it moves, its mask, and the votes on its class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.tracking.strips import Ints, Strips, join_strips
from maskjet.tracking.tuning import Tuning

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_LEAST_AREA = 16.0  # pixels of a box, so that no size is 0
_OPPOSITE = [2, 3, 0, 1]  # edges
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
        if is_lost.any():
            still_s = np.where(rows["is_covered"][is_lost], tuning.covered_still_s, tuning.still_s)[:, None]
            first, second = rows["speeds"][is_lost, :2], rows["speeds"][is_lost, 2:]
            middle = np.exp(-passed_s / still_s) * (first + second) / 2
            half = np.exp(-10 * passed_s / tuning.still_s) * (second - first) / 2
            rows["speeds"][is_lost] = np.concatenate([middle - half, middle + half], axis=1)
        rows["edges"] += rows["speeds"] * passed_s
        noise = (tuning.acceleration * sizes_of(rows["edges"]))[:, None] ** 2
        place, both, speed = np.moveaxis(rows["spreads"], -1, 0)
        place += passed_s * (2 * both + passed_s * speed) + noise * passed_s**3 / 3
        both += passed_s * speed + noise * passed_s**2 / 2
        speed += noise * passed_s

    def correct(self, chosen: Ints, boxes: Floats, is_hidden: Bools, tuning: Tuning) -> None:
        """Correct tracks, int64 [n], by the boxes that were found, [n, 4]; hidden edges move with the opposite ones."""
        rows = self.rows[chosen]
        edges, place, both, speed = rows["edges"], *np.moveaxis(rows["spreads"], -1, 0)
        missed = boxes - edges
        missed = np.where(is_hidden, np.where(is_hidden[:, _OPPOSITE], 0, missed[:, _OPPOSITE]), missed)
        total = place + np.where(is_hidden, 4, 1) * (tuning.jitter * sizes_of(edges))[:, None] ** 2
        gain, speed_gain = place / total, both / total
        self.rows["edges"][chosen] = edges + gain * missed
        self.rows["speeds"][chosen] += speed_gain * missed
        after = (1 - gain) * place, (1 - gain) * both, speed - speed_gain * both
        self.rows["spreads"][chosen] = np.stack(after, axis=-1)

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


def sizes_of(boxes: Floats) -> Floats:
    """The roots of the areas of boxes [n, 4], in pixels."""
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    return np.asarray(np.sqrt(np.maximum(sides[:, 0] * sides[:, 1], _LEAST_AREA)))
