"""The tracker: gives the detections of one frame after another their identities."""

from __future__ import annotations

import math

import numpy as np

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.tracking.matching import Compared, Given, assign, compare, find_hidden_edges, score_returns
from maskjet.tracking.strips import Ints, cut_strips
from maskjet.tracking.tracks import Bools, Floats, Tracks
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
        self.threshold, self._tuning = threshold, tuning or Tuning()
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
        is_lost = self._tracks.rows["seen_s"] < self._time_s
        if len(self._tracks):
            self._tracks.predict(time_s - self._time_s, is_lost, self._tuning)
        compared = compare(self._tracks, given, self._tuning)
        track_of = self._match(given, compared, time_s)
        if (track_of < 0).all() and min(np.count_nonzero(~is_lost), np.count_nonzero(self._is_strong(given))) >= _CUT:
            self._begin_anew()
            compared = compare(self._tracks, given, self._tuning)
        if self._began_s == -math.inf:
            self._began_s = time_s
        self._size_hw, self._time_s = found.image_size, time_s
        self._continue(given, compared, track_of)
        is_gone = self._adopt(track_of[track_of >= 0]) | self._find_expired(compared, found.image_size)
        if is_gone.any():
            self._tracks.keep(~is_gone)
            track_of = np.where(track_of >= 0, (np.cumsum(~is_gone) - 1)[track_of], -1)
        self._begin(given, track_of)
        return self._name(found, track_of)

    def _name(self, found: Detections, track_of: Ints) -> Detections:
        """The detections with the ids and classes of their tracks."""
        ids, classes = np.full(len(found), -1, np.int64), found.class_id.astype(np.int64)
        is_tracked = track_of >= 0
        chosen = track_of[is_tracked]
        ids[is_tracked] = self._tracks.rows["id"][chosen]
        classes[is_tracked] = np.array([*self._columns], np.int64)[self._tracks.classes[chosen]]
        return found.with_tracks(ids, classes)

    def _read(self, found: Detections) -> Given:
        """The detections as arrays, with boxes within the image."""
        height, width = found.image_size
        boxes = np.minimum(np.fmax(found.xyxy.astype(np.float64), 0), (width, height, width, height))
        for class_id in found.class_id.tolist():
            self._columns.setdefault(class_id, len(self._columns))
        classes = np.array([self._columns[class_id] for class_id in found.class_id.tolist()], np.int64)
        votes, missing = self._tracks.votes, len(self._columns) - self._tracks.votes.shape[1]
        if missing > 0:
            self._tracks.votes = np.pad(votes, ((0, 0), (0, missing)))
        confidence = found.confidence.astype(np.float64).clip(0, 1)
        return Given(found.image_size, boxes, confidence, classes, cut_strips(found))

    def _is_strong(self, given: Given) -> Bools:
        return np.asarray(given.confidence >= self.threshold)

    def _match(self, given: Given, compared: Compared, time_s: float) -> Ints:
        """The track of each detection, -1 for none: int64 [n]."""
        tracks, tuning, confidence = self._tracks, self._tuning, given.confidence
        track_of, is_free = np.full(len(confidence), -1), np.ones(len(tracks), np.bool_)

        def take(scores: Floats, least: float) -> None:
            chosen, found = assign(scores, least)
            track_of[candidates[1][found]] = candidates[0][chosen]
            is_free[candidates[0][chosen]] = False

        is_confirmed, is_strong = tracks.rows["id"] >= 0, self._is_strong(given)
        is_usable = is_strong | (confidence >= tuning.low)
        is_late = (time_s - tracks.rows["seen_s"] > tuning.weak_s)[:, None]
        is_refused = ~is_strong & (is_late | (compared.similarity < tuning.least_weak))
        weights = 1 - tuning.confidence_share + tuning.confidence_share * confidence
        candidates = np.flatnonzero(is_confirmed), np.flatnonzero(is_usable)
        take(np.where(is_refused, 0, compared.similarity * weights)[np.ix_(*candidates)], tuning.least)
        candidates = np.flatnonzero(~is_confirmed), np.flatnonzero(is_usable & (track_of < 0))
        take(compared.similarity[np.ix_(*candidates)], tuning.least_new)
        lost, left = candidates = np.flatnonzero(is_confirmed & is_free), np.flatnonzero(is_strong & (track_of < 0))
        if len(lost) and len(left):
            things = given.boxes[left], given.masks.areas[left], given.classes[left]
            take(score_returns(tracks, lost, *things, tuning), 0)
        return track_of

    def _continue(self, given: Given, compared: Compared, track_of: Ints) -> None:
        """Move the tracks that were found to where they are, and confirm them."""
        tracks, tuning, rows = self._tracks, self._tuning, self._tracks.rows
        found = np.flatnonzero(track_of >= 0)
        chosen, boxes, areas = track_of[found], given.boxes[found], given.masks.areas[found]
        is_cut = compared.hidden[chosen, found] > tuning.cut_share * rows["area"][chosen]
        is_hidden = find_hidden_edges(tracks, chosen, found, given, is_cut, tuning.cut_depth)
        tracks.correct(chosen, boxes, is_hidden, tuning)
        is_whole = ~is_cut | (areas >= tuning.shrunk * rows["area"][chosen])
        places = np.where(is_hidden.any(1, keepdims=True), rows["edges"][chosen], boxes)
        tracks.take_masks(chosen[is_whole], places[is_whole], given.masks, found[is_whole])
        rows["seen_s"][chosen] = self._time_s
        rows["best"][chosen] = np.maximum(rows["best"][chosen], given.confidence[found])
        tracks.votes[chosen, given.classes[found]] += given.confidence[found]
        is_sure = (rows["best"][chosen] >= tuning.birth) | (tracks.votes[chosen].sum(1) >= tuning.evidence)
        self._confirm(chosen[is_sure & (rows["id"][chosen] < 0)])

    def _confirm(self, chosen: Ints) -> None:
        self._tracks.rows["id"][chosen] = self._next_id + np.arange(len(chosen))
        self._next_id += len(chosen)

    def _adopt(self, chosen: Ints) -> Bools:
        """Let young tracks, of those found, continue lost ones that they fit: which lost ones, bool [t]."""
        tracks, rows, tuning = self._tracks, self._tracks.rows, self._tuning
        is_adopted, born_s = np.zeros(len(tracks), np.bool_), rows["born_s"][chosen]
        young = chosen[(self._time_s - born_s <= tuning.adopt_s) & (born_s > self._began_s)]
        lost = np.flatnonzero((rows["id"] >= 0) & (rows["seen_s"] < self._time_s))
        if len(young) and len(lost):
            things = rows["edges"][young], rows["area"][young], tracks.classes[young]
            scores = score_returns(tracks, lost, *things, tuning)
            scores[rows["seen_s"][lost, None] >= rows["born_s"][young]] = 0
            i, j = assign(scores, 0)
            old, new = lost[i], young[j]
            for name in ("id", "born_s"):
                rows[name][new] = rows[name][old]
            tracks.votes[new] += tracks.votes[old]
            is_adopted[old] = True
        return is_adopted

    def _find_expired(self, compared: Compared, size_hw: tuple[int, int]) -> Bools:
        """Which tracks have not been found for too long, bool [t]; those that left the image wait at its border."""
        tuning, rows, time_s = self._tuning, self._tracks.rows, self._time_s
        is_expired = rows["seen_s"] < time_s
        rows["is_covered"] = is_expired & (compared.covered > tuning.covered_share)
        lost = np.flatnonzero(is_expired)
        edges, seen_s, until_s = rows["edges"][lost], rows["seen_s"][lost], rows["until_s"][lost]
        middles = (edges[:, :2] + edges[:, 2:]) / 2
        away = np.clip(middles, 0, size_hw[::-1]) - middles
        is_outside = away.any(1)
        rows["edges"][lost] += np.hstack([away, away])
        rows["speeds"][lost[is_outside]] = 0
        until_s = np.maximum(until_s, seen_s + tuning.lost_s)
        hidden_until_s = np.minimum(time_s + tuning.lost_s, seen_s + tuning.covered_s)
        until_s = np.where(rows["is_covered"][lost], np.maximum(until_s, hidden_until_s), until_s)
        until_s = np.where(rows["id"][lost] < 0, seen_s + tuning.tentative_s, until_s)
        rows["until_s"][lost], is_expired[lost] = until_s, time_s > until_s
        return np.asarray(is_expired)

    def _begin(self, given: Given, track_of: Ints) -> None:
        """Begin tracks of detections that have none, in the first frame confirmed ones."""
        tuning = self._tuning
        new = np.flatnonzero((track_of < 0) & self._is_strong(given))
        if not len(new):
            return
        chosen = self._tracks.begin(given.boxes[new], self._time_s, tuning)
        self._tracks.take_masks(chosen, given.boxes[new], given.masks, new)
        self._tracks.votes[chosen, given.classes[new]] = given.confidence[new]
        self._tracks.rows["best"][chosen] = given.confidence[new]
        least = tuning.birth if self._began_s == self._time_s else tuning.instant
        self._confirm(chosen[given.confidence[new] >= least])
        track_of[new] = chosen
