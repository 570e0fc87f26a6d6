"""The tracker: assigns track ids to the detections of successive frames."""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from maskjet.checks import check_fraction
from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.jit import Ints, compiled
from maskjet.masks.strips import cut_boxes, cut_masks, types
from maskjet.tracking.matching import adopt, compare, match
from maskjet.tracking.tracks import (
    CONSTANTS,
    GIVEN,
    TRACKS,
    Floats,
    Given,
    Tracks,
    expire,
    go_on,
    no_tracks,
    predict,
    renew,
)
from maskjet.tracking.tuning import Tuning

_FRAME_S = 1 / 30  # assumed seconds between frames without timestamps
_CUT = 3  # fewest tracks and detections, none matching, for a cut


class Tracker:
    """Tracks instances from frame to frame, by masks, or by boxes if there are no masks.

    All frames of one camera go through it in order. It begins anew, with other ids, where the size of the frames
    changes, their time runs back or is more than `Tuning.covered_s` (4 s) later, as after a gap, or nothing of several
    things goes on, as at a cut. Same detections, same ids.

    Args:
        threshold: Least confidence of detections that begin a track, 0..1. Weaker ones, from 0.1, only continue
            tracks, which loses fewer of them: detect with a lower threshold than is wanted, and pick afterwards.
        tuning: Its constants.

    Raises:
        InputError: The threshold is not as above.

    Examples:
        >>> import maskjet
        >>> from maskjet.tracking import Tracker
        >>> model, tracker = maskjet.load("demo", device="cpu"), Tracker()
        >>> street = maskjet.traffic.Street(seed=3, size_hw=(360, 640))
        >>> found = [model.predict(street.frame(index).image, threshold=0.1) for index in range(2)]
        >>> tracked = [tracker.update(each, index / 30) for index, each in enumerate(found)]
        >>> all((each.xyxy == same.xyxy).all() for each, same in zip(found, tracked))
        True
    """

    def __init__(self, *, threshold: float = 0.5, tuning: Tuning | None = None) -> None:
        check_fraction("threshold", threshold)
        self.threshold, self._tuning = threshold, Tuning(*map(float, tuning or Tuning()))
        self._next_id = 1
        self._class_ids = np.zeros(0, np.int64)  # class id of each column of votes
        self._size_hw: tuple[int, int] | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._tracks = no_tracks(len(self._class_ids))
        self._began_s = self._time_s = -math.inf

    def update(self, found: Detections, time_s: float | None = None) -> Detections:
        """Assign track ids to the next frame's detections; their other fields stay unchanged.

        Args:
            found: The detections, most confident first.
            time_s: The frame's time in seconds; None is 1/30 s after the last frame.

        Returns:
            The same detections with `track_id` and `track_class_id`.

        Raises:
            InputError: The time is not finite, or a mask is malformed.
        """
        if time_s is None:
            time_s = self._time_s + _FRAME_S if self._time_s > -math.inf else 0.0
        if not math.isfinite(time_s):
            raise InputError(f"time_s must be finite, got {time_s}.")
        given = self._read(found)
        if found.image_size != self._size_hw or not 0 <= time_s - self._time_s <= self._tuning.covered_s:
            self._begin_anew()
        times = self._began_s, self._time_s, time_s
        self._tracks, self._next_id, self._began_s, track_id, columns = _update(
            self._tracks, given, times, self._next_id, self.threshold, self._tuning
        )
        self._size_hw, self._time_s = found.image_size, time_s
        return found.with_tracks(track_id, self._class_ids[columns])

    def _read(self, found: Detections) -> Given:
        """Convert detections to the tracker's arrays, with boxes clamped to the image."""
        fields = _read_fields(found.xyxy, found.confidence, found.class_id, found.image_size, self._class_ids)
        if fields[2].min(initial=0) < 0:
            new = np.setdiff1d(found.class_id, self._class_ids)
            self._class_ids = np.concatenate([self._class_ids, new])
            self._tracks = self._tracks._replace(votes=np.pad(self._tracks.votes, ((0, 0), (0, len(new)))))
            return self._read(found)
        is_moved = np.zeros(len(found), np.bool_) if found.moved is None else found.moved > 0
        size_hw, rles = found.image_size, found.rle
        masks = cut_boxes(found.xyxy, size_hw) if rles is None else cut_masks(rles, size_hw)
        return Given(size_hw, *fields, is_moved, masks)


_FIELDS = (
    types.Array(numba.float32, 2, "A", True),
    types.Array(numba.float32, 1, "A", True),
    types.Array(numba.int32, 1, "A", True),
)


@compiled(
    types.Tuple((numba.float64[:, ::1], numba.float64[::1], numba.int64[::1]))(
        *_FIELDS, types.UniTuple(numba.int64, 2), numba.int64[::1]
    )
)
def _read_fields(
    xyxy: NDArray[np.float32],
    confidence: NDArray[np.float32],
    class_id: NDArray[np.int32],
    size_hw: tuple[int, int],
    known: Ints,
) -> tuple[Floats, Floats, Ints]:
    """Clamp boxes to the image and confidences to 0..1, NaN to 0; look up columns of classes, -1 if new."""
    count = len(class_id)
    boxes, confidences, columns = np.empty((count, 4)), np.empty(count), np.full(count, -1)
    for n in range(count):
        for k in range(4):
            edge = float(xyxy[n, k])
            boxes[n, k] = min(edge, float(size_hw[1 - k % 2])) if edge > 0 else 0.0
        confidences[n] = min(float(confidence[n]), 1.0) if confidence[n] > 0 else 0.0
        for column in range(len(known)):
            if known[column] == class_id[n]:
                columns[n] = column
    return boxes, confidences, columns


@compiled(
    types.Tuple((TRACKS, numba.int64, numba.float64, numba.int64[::1], numba.int64[::1]))(
        *(TRACKS, GIVEN, types.UniTuple(numba.float64, 3), numba.int64, numba.float64, CONSTANTS)
    )
)
def _update(
    tracks: Tracks, given: Given, times: tuple[float, float, float], next_id: int, threshold: float, tuning: Tuning
) -> tuple[Tracks, int, float, Ints, Ints]:
    """Update tracks with a frame's detections, in one compiled call, as several would mostly cost call overhead.

    `times` are when the tracker began, -inf for now, when the frame before was, and when this one is. Returns the
    tracks, the next free id, and when the tracker began; of the detections ids and columns of classes, int64 [n].
    """
    began_s, last_s, time_s = times
    predict(tracks.rows, time_s - last_s, last_s, tuning)
    compared = compare(tracks, given, tuning)
    track_of = match(tracks, given, compared.similarity, time_s, threshold, tuning)
    gone_on, strong = np.sum(tracks.rows["seen_s"] >= last_s), np.sum(given.confidence >= threshold)
    if (track_of < 0).all() and min(gone_on, strong) >= _CUT:
        tracks, began_s = no_tracks(tracks.votes.shape[1]), -np.inf
        compared = compare(tracks, given, tuning)
    instant = tuning.instant
    if began_s == -np.inf:
        began_s, instant = time_s, tuning.birth
    next_id, origins = go_on(tracks, given, compared.hidden, track_of, time_s, next_id, tuning)
    is_gone = adopt(tracks, track_of, time_s, began_s, tuning)
    expire(tracks.rows, compared.covered, given.size_hw, time_s, is_gone, tuning)
    tracks, next_id = renew(tracks, given, is_gone, origins, track_of, time_s, threshold, instant, next_id, tuning)
    track_id, columns = np.full(len(track_of), -1), given.classes.copy()
    for n, i in enumerate(track_of):
        if i >= 0:
            track_id[n], columns[n] = tracks.rows[i].id, tracks.votes[i].argmax()
    return tracks, next_id, began_s, track_id, columns
