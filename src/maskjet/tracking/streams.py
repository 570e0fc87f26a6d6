"""Tracking as a transform of a stream, with a tracker per source."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.tracking.tracker import Tracker

if TYPE_CHECKING:
    from maskjet.sources.source import Frame


class TrackerLike(Protocol):
    """A tracker: assigns track ids to the detections of consecutive frames."""

    def update(self, found: Detections, time_s: float | None) -> Detections:
        """Return the same detections in the same order, with `track_id`; see `Detections.with_tracks`."""


def track(
    results: Generator[tuple[Frame, Detections]],
    tracker: bool | TrackerLike,
    *,
    sources: int,
    threshold: float,
    note: Callable[..., None],
) -> Generator[tuple[Frame, Detections]]:
    """Give the detections of a stream identities, by a tracker per source.

    Args:
        results: Frames with their detections, closed at the end.
        tracker: True for a `Tracker` per source, or a tracker for a single source.
        sources: Number of sources.
        threshold: Confidence from which on detections begin tracks; weaker ones only continue them.
        note: Called for each frame with `tracked` (1), the number of new tracks, `tracks`, and the time spent,
            `tracking_us`.

    Raises:
        InputError: A single tracker is given for several sources, or something that is none.
    """
    if tracker is True:
        trackers: list[TrackerLike] = [Tracker(threshold=threshold) for _ in range(sources)]
    elif not callable(getattr(tracker, "update", None)) or sources != 1:
        got = type(tracker).__name__ if sources == 1 else f"{type(tracker).__name__} for {sources} sources"
        raise InputError(f"track must be True, False, or for one source a tracker with update(), got {got}.")
    else:
        trackers = [tracker]  # type: ignore[list-item] # it has `update`
    return _track(results, trackers, note)


def _track(
    results: Generator[tuple[Frame, Detections]], trackers: Sequence[TrackerLike], note: Callable[..., None]
) -> Generator[tuple[Frame, Detections]]:
    highest = [0] * len(trackers)  # track id so far, by source
    with closing(results):
        for frame, found in results:
            began, before = time.perf_counter_ns(), highest[frame.stream]
            tracked = trackers[frame.stream].update(found, frame.time_s)
            if not isinstance(tracked, Detections) or len(tracked) != len(found):
                what = f"{len(tracked)} of them" if isinstance(tracked, Detections) else type(tracked).__name__
                raise InputError(f"track.update must return the {len(found)} detections that it got, got {what}.")
            if tracked.track_id is not None:
                highest[frame.stream] = int(tracked.track_id.max(initial=before))
            spent_us = (time.perf_counter_ns() - began) // 1000
            note(tracked=1, tracks=highest[frame.stream] - before, tracking_us=spent_us)
            yield frame, tracked
