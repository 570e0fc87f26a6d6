"""The tracker: gives the detections of one frame after another their identities."""

from __future__ import annotations

import math

import numpy as np

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.tracking.matching import (
    Compared,
    assign,
    compare,
    score_adoptions,
    score_confirmed,
    score_returns,
    score_young,
)
from maskjet.tracking.strips import Ints, cut_strips
from maskjet.tracking.tracks import Bools, Given, Tracks, begin, expire, go_on, predict
from maskjet.tracking.tuning import Tuning

_FRAME_S = 1 / 30  # between frames without times
_CUT = 3  # tracks and detections of which none go together where a video is cut


class Tracker:
    """Tells things apart from frame to frame, by their masks, or by boxes where there are none.

    All frames of one camera go through it in order. It begins anew, with other ids, where the size of the frames
    changes, their time runs back, or nothing of several things goes on, as at a cut. Same detections, same ids.

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
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold must be 0..1, got {threshold}.")
        self.threshold, self._tuning = threshold, Tuning(*map(float, tuning or Tuning()))
        self._next_id = 1
        self._columns: dict[int, int] = {}  # class id to column of votes
        self._size_hw: tuple[int, int] | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._tracks = Tracks(len(self._columns))
        self._began_s = self._time_s = -math.inf

    def update(self, found: Detections, time_s: float | None = None) -> Detections:
        """Give the detections of the next frame their identities; nothing else about them changes.

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
        if found.image_size != self._size_hw or time_s < self._time_s:
            self._begin_anew()
        tracks, last_s = self._tracks, self._time_s
        if len(tracks):
            predict(tracks.rows, time_s - last_s, last_s, self._tuning)
        compared = compare(tracks, given, self._tuning)
        track_of = self._match(given, compared, time_s)
        if (track_of < 0).all() and self._is_cut(given, last_s):
            self._begin_anew()
            tracks = self._tracks
            compared = compare(tracks, given, self._tuning)
        if self._began_s == -math.inf:
            self._began_s = time_s
        self._size_hw, self._time_s = found.image_size, time_s
        origins = np.arange(len(tracks))
        state, tuning = (tracks.rows, tracks.votes, given), self._tuning
        self._next_id = go_on(*state, compared.hidden, track_of, time_s, self._next_id, origins, tuning)
        is_gone = self._adopt(track_of)
        expire(tracks.rows, compared.covered, given.size_hw, time_s, is_gone, tuning)
        new = np.flatnonzero((track_of < 0) & (given.confidence >= self.threshold))
        places = tracks.renew(is_gone, len(new), given.masks, np.concatenate([origins, ~new]))
        track_of = np.where(track_of >= 0, places[track_of], -1) if len(places) else track_of
        if len(new):
            first = len(tracks) - len(new)
            least = tuning.birth if self._began_s == time_s else tuning.instant
            track_of[new] = np.arange(first, len(tracks))
            state = tracks.rows, tracks.votes, given
            self._next_id = begin(*state, new, first, time_s, least, self._next_id, tuning)
        return self._name(found, track_of)

    def _is_cut(self, given: Given, last_s: float) -> bool:
        """Whether the video is cut where nothing of several things goes on."""
        gone_on, strong = self._tracks.rows["seen_s"] >= last_s, given.confidence >= self.threshold
        return bool(min(np.count_nonzero(gone_on), np.count_nonzero(strong)) >= _CUT)

    def _name(self, found: Detections, track_of: Ints) -> Detections:
        """The detections with the ids and classes of their tracks."""
        ids, classes = np.full(len(found), -1, np.int64), found.class_id.astype(np.int64)
        is_tracked = track_of >= 0
        chosen = track_of[is_tracked]
        ids[is_tracked] = self._tracks.rows["id"][chosen]
        classes[is_tracked] = np.array([*self._columns], np.int64)[self._tracks.votes[chosen].argmax(1)]
        return found.with_tracks(ids, classes)

    def _read(self, found: Detections) -> Given:
        """The detections as arrays, with boxes within the image."""
        height, width = found.image_size
        boxes = np.minimum(np.fmax(found.xyxy.astype(np.float64), 0), (width, height, width, height))
        for class_id in found.class_id.tolist():
            self._columns.setdefault(class_id, len(self._columns))
        classes = np.array([self._columns[class_id] for class_id in found.class_id.tolist()], np.int64)
        self._tracks.add_classes(len(self._columns))
        confidence = found.confidence.astype(np.float64).clip(0, 1)
        return Given(found.image_size, boxes, confidence, classes, cut_strips(found))

    def _match(self, given: Given, compared: Compared, time_s: float) -> Ints:
        """The track of each detection, -1 for none: int64 [n]."""
        rows, votes, similarity = self._tracks.rows, self._tracks.votes, compared.similarity
        scores, track_of = np.empty_like(similarity), np.full(len(given.classes), -1)
        into = self.threshold, self._tuning, scores

        def take() -> None:
            i, j = assign(scores)
            track_of[j] = i

        if score_confirmed(rows, similarity, given.confidence, time_s, *into):
            take()
        if score_young(rows, similarity, given.confidence, track_of, *into):
            take()
        if score_returns(rows, votes, given, track_of, *into):
            take()
        return track_of

    def _adopt(self, track_of: Ints) -> Bools:
        """Let young tracks, of those found, continue lost ones that they fit: which lost ones, bool [t]."""
        rows, votes = self._tracks.rows, self._tracks.votes
        is_adopted, scores = np.zeros(len(rows), np.bool_), np.empty((len(rows), len(track_of)))
        if score_adoptions(rows, votes, track_of, self._time_s, self._began_s, self._tuning, scores):
            old, j = assign(scores)
            new = track_of[j]
            for name in ("id", "born_s"):
                rows[name][new] = rows[name][old]
            votes[new] += votes[old]
            is_adopted[old] = True
        return is_adopted
