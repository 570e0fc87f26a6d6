"""Tracking of the sources that are read side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from maskjet.calls import Postprocessing
from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.tracking.tracker import Tracker

if TYPE_CHECKING:
    from maskjet.media.source import Frame


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

    Raises:
        InputError: A single tracker is given for several sources, or something that is none.
    """

    def __init__(self, track: bool | TrackerLike, sources: int, reported: Postprocessing) -> None:
        self._lowest, self._most = reported.lowest, reported.max_detections
        self._trackers: list[TrackerLike]
        if track is True:
            self._trackers = [Tracker(threshold=self._lowest) for _ in range(sources)]
        elif not callable(getattr(track, "update", None)) or sources != 1:
            got = type(track).__name__ if sources == 1 else f"{type(track).__name__} for {sources} sources"
            raise InputError(f"track must be True, False, or for one source a tracker with update(), got {got}.")
        else:
            self._trackers = [track]  # type: ignore[list-item] # it has `update`

    def finish(self, frame: Frame, found: Detections) -> Detections:
        """Give a frame's detections their identities, and drop those that are not reported."""
        tracked = self._trackers[frame.stream].update(found, frame.time_s)
        if not isinstance(tracked, Detections) or len(tracked) != len(found):
            what = f"{len(tracked)} of them" if isinstance(tracked, Detections) else type(tracked).__name__
            raise InputError(f"track.update must return the {len(found)} detections that it got, got {what}.")
        reported = int(np.count_nonzero(found.confidence > np.float32(self._lowest)))
        return tracked[: min(reported, self._most)]
