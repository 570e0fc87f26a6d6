"""Trackers of other packages, on the detections that ours gets; each is made anew for a video.

Options are the packages' defaults, but for a lost track's time, which is that of ours where "2 s" is in the name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.tracking import Tracker, Tuning

Update = Callable[[Detections, float], tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Takes a frame's detections and its time in seconds; returns the ids and the classes of all, -1 for no id."""
_LONG = 60  # frames of "2 s"


def ours(*, boxes_alone: bool = False, **constants: float) -> Callable[[], Update]:
    """Make trackers of ours, with some constants of `Tuning`."""

    def make() -> Update:
        tracker = Tracker(tuning=Tuning(**constants))

        def update(found: Detections, time_s: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            tracked = tracker.update(replace(found, rle=None) if boxes_alone else found, time_s)
            assert tracked.track_id is not None
            assert tracked.track_class_id is not None
            return tracked.track_id, tracked.track_class_id

        return update

    return make


def _of_supervision(make_tracker: Callable[[], Any], method: str) -> Callable[[], Update]:
    """Make trackers that take and return `supervision.Detections`."""

    def make() -> Update:
        import supervision

        tracker = make_tracker()

        def update(found: Detections, _time_s: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            given = supervision.Detections(
                xyxy=found.xyxy.copy(),
                confidence=found.confidence.copy(),
                class_id=found.class_id.astype(int),
                data={"row": np.arange(len(found))},
            )
            tracked = getattr(tracker, method)(given)
            ids = np.full(len(found), -1, np.int64)
            if len(tracked) and tracked.tracker_id is not None:
                ids[tracked.data["row"].astype(int)] = tracked.tracker_id
            return ids, found.class_id.astype(np.int64)

        return update

    return make


def _of_trackers(name: str, **options: Any) -> Callable[[], Update]:
    def make_tracker() -> Any:
        import trackers

        return getattr(trackers, name)(**options)

    return _of_supervision(make_tracker, "update")


def _of_supervision_itself(**options: Any) -> Callable[[], Update]:
    def make_tracker() -> Any:
        import supervision

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it moves to `trackers`
            return getattr(supervision, "ByteTrack")(frame_rate=30, **options)  # noqa: B009 - gone from 0.31

    return _of_supervision(make_tracker, "update_with_detections")


def peers() -> Mapping[str, Callable[[], Update]]:
    """The trackers that are installed."""
    found: dict[str, Callable[[], Update]] = {}
    if find_spec("trackers"):
        for name in ("SORT", "ByteTrack", "OCSORT", "BoTSORT"):
            options = {"enable_cmc": False} if name == "BoTSORT" else {}  # the camera stands
            found[f"trackers {name}"] = _of_trackers(f"{name}Tracker", **options)
            if name != "SORT":  # which gains nothing
                found[f"trackers {name}, 2 s"] = _of_trackers(f"{name}Tracker", **options, lost_track_buffer=_LONG)
    if find_spec("supervision") and hasattr(import_module("supervision"), "ByteTrack"):  # until 0.30
        found["supervision ByteTrack"] = _of_supervision_itself()
    return found
