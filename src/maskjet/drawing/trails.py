"""The ways that tracks have come, drawn behind them."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

_LENGTH = 30  # frames


class Trails:
    """The ways of a source's tracks over their last 30 frames: the middles of their boxes' bottom edges."""

    def __init__(self) -> None:
        self._frame = 0
        self._ways: dict[int, tuple[int, deque[tuple[float, float]]]] = {}  # with the frame it was seen in last

    def follow(self, xyxy: NDArray[np.float32], track_id: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        """Take note of the next frame's tracks.

        Returns:
            Per detection its way, float64 [k, 2], points (x, y), the last one first; empty without a track.
        """
        self._frame += 1
        shown = []
        for number, (x1, _, x2, y2) in zip(track_id.tolist(), xyxy.tolist(), strict=True):
            way: deque[tuple[float, float]] = deque(maxlen=_LENGTH)
            if number >= 0 and np.isfinite((x1, x2, y2)).all():
                way = self._ways.get(number, (0, way))[1]
                way.appendleft(((x1 + x2) / 2, y2))
                self._ways[number] = self._frame, way
            shown.append(np.array(way).reshape(-1, 2))
        oldest = self._frame - _LENGTH
        self._ways = {number: known for number, known in self._ways.items() if known[0] > oldest}
        return shown
