"""Tracking of the sources that are read side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.postprocessing import Postprocessing
from maskjet.tracking.tracker import Tracker

if TYPE_CHECKING:
    from maskjet.sources.source import Frame


class TrackerLike(Protocol):
    """Whatever gives the detections of one frame after another their identities."""

    def update(self, found: Detections, time_s: float | None) -> Detections:
        """Return the same detections in the same order, with `track_id`; see `Detections.with_tracks`."""


class StreamTracking:
    """Trackers of a stream, one per source.

    Args:
        track: True for ours, or a tracker for a single source.
        sources: Number of sources.
        reported: What the stream reports.
        note: Called for each frame with the number of new tracks, `tracks`, and the time spent, `tracking_us`.

    Raises:
        InputError: A single tracker is given for several sources, or something that is none.
    """

    def __init__(
        self, track: bool | TrackerLike, sources: int, reported: Postprocessing, note: Callable[..., None]
    ) -> None:
        self._lowest, self._most, self._note = reported.lowest, reported.max_detections, note
        self._highest = [0] * sources  # id of each
        self._trackers: list[TrackerLike]
        if track is True:
            self._trackers = [Tracker(threshold=self._lowest) for _ in range(sources)]
        elif not callable(getattr(track, "update", None)) or sources != 1:
            got = type(track).__name__ if sources == 1 else f"{type(track).__name__} for {sources} sources"
            raise InputError(f"track must be True, False, or for one source a tracker with update(), got {got}.")
        else:
            self._trackers = [track]  # type: ignore[list-item] # it has `update`

    def finish(self, frame: Frame, found: Detections) -> tuple[Frame, Detections]:
        """Give a frame's detections their identities, and drop those that are not reported."""
        began, before = time.perf_counter_ns(), self._highest[frame.stream]
        tracked = self._trackers[frame.stream].update(found, frame.time_s)
        if not isinstance(tracked, Detections) or len(tracked) != len(found):
            what = f"{len(tracked)} of them" if isinstance(tracked, Detections) else type(tracked).__name__
            raise InputError(f"track.update must return the {len(found)} detections that it got, got {what}.")
        if tracked.track_id is not None:
            self._highest[frame.stream] = int(tracked.track_id.max(initial=before))
        spent_us = (time.perf_counter_ns() - began) // 1000
        self._note(tracked=1, tracks=self._highest[frame.stream] - before, tracking_us=spent_us)
        reported = int(np.count_nonzero(found.confidence > np.float32(self._lowest)))
        return frame, tracked[: min(reported, self._most)]
