"""Scores of trackers: HOTA, DetA, AssA, IDF1, MOTA and switches as TrackEval 1.3 defines them, gaps and class flips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Floats = NDArray[np.float64]
_ALPHAS = np.arange(0.05, 0.99, 0.05)
_EPSILON = np.finfo(float).eps
_MATCH = 0.5  # least similarity of MOTA, IDF1, gaps and flips
GAP_S = 0.2
"""Shortest time without a detection that counts as a gap, in seconds."""
_BACK_S = 1.0  # a thing must have had, and have again, an identity within this time of the gap


@dataclass(frozen=True)
class Tracked:
    """A frame's truth and what a tracker said."""

    time_s: float
    """Presentation time."""
    true_ids: NDArray[np.int64]
    """int64 [g]: the things there."""
    ids: NDArray[np.int64]
    """int64 [n]: the identity of each detection, -1 for none."""
    classes: NDArray[np.int64]
    """int64 [n]: the class of each detection or of its track."""
    overlaps: Floats
    """float64 [g, n]: intersection over union of each thing and detection."""


def score(frames: Sequence[Tracked]) -> dict[str, float]:
    """Score a video: HOTA, DetA, AssA, IDF1, MOTA in percent; the rest are counts."""
    truth_numbers: dict[int, int] = {}
    numbers: dict[int, int] = {}
    rows = []
    for frame in frames:
        chosen = np.flatnonzero(frame.ids >= 0)
        true = np.array([truth_numbers.setdefault(int(i), len(truth_numbers)) for i in frame.true_ids], int)
        ids = np.array([numbers.setdefault(int(i), len(numbers)) for i in frame.ids[chosen]], int)
        rows.append((true, ids, frame.overlaps[:, chosen]))
    size = len(truth_numbers), len(numbers)
    return {**_hota(rows, size), "IDF1": _idf1(rows, size), **_mota(rows), **_gaps(frames), "flips": _flips(frames)}


Rows = list[tuple[NDArray[np.int64], NDArray[np.int64], Floats]]


def _hota(rows: Rows, size: tuple[int, int]) -> dict[str, float]:
    together, true_count, count = np.zeros(size), np.zeros((size[0], 1)), np.zeros((1, size[1]))
    for true, ids, overlaps in rows:
        union = overlaps.sum(0)[None] + overlaps.sum(1)[:, None] - overlaps
        together[np.ix_(true, ids)] += np.where(union > _EPSILON, overlaps / np.maximum(union, _EPSILON), 0)
        true_count[true] += 1
        count[0, ids] += 1
    alignment = together / np.maximum(true_count + count - together, _EPSILON)
    hits, matches = np.zeros(len(_ALPHAS)), np.zeros((len(_ALPHAS), *size))
    for true, ids, overlaps in rows:
        i, j = linear_sum_assignment(-alignment[np.ix_(true, ids)] * overlaps)
        for number, alpha in enumerate(_ALPHAS):
            is_hit = overlaps[i, j] >= alpha - _EPSILON
            hits[number] += is_hit.sum()
            matches[number, true[i[is_hit]], ids[j[is_hit]]] += 1
    truths, found = true_count.sum(), count.sum()
    det = hits / np.maximum(truths + found - hits, 1)
    ass = (matches * matches / np.maximum(true_count + count - matches, 1)).sum((1, 2)) / np.maximum(hits, 1)
    return {
        "HOTA": 100 * float(np.sqrt(det * ass).mean()),
        "DetA": 100 * float(det.mean()),
        "AssA": 100 * float(ass.mean()),
    }


def _idf1(rows: Rows, size: tuple[int, int]) -> float:
    true_count, count, together = np.zeros(size[0]), np.zeros(size[1]), np.zeros(size)
    for true, ids, overlaps in rows:
        true_count[true] += 1
        count[ids] += 1
        i, j = np.nonzero(overlaps >= _MATCH)
        together[true[i], ids[j]] += 1
    misses, extras = np.zeros((sum(size), sum(size))), np.zeros((sum(size), sum(size)))
    misses[: size[0], : size[1]] = true_count[:, None] - together
    extras[: size[0], : size[1]] = count[None] - together
    misses[: size[0], size[1] :] = np.where(np.eye(size[0]), true_count[:, None], 1e10)  # matched by none
    extras[size[0] :, : size[1]] = np.where(np.eye(size[1]), count[None], 1e10)
    i, j = linear_sum_assignment(misses + extras)
    missed, extra = misses[i, j].sum(), extras[i, j].sum()
    hits = true_count.sum() - missed
    return float(100 * hits / max(1.0, hits + 0.5 * extra + 0.5 * missed))


def _mota(rows: Rows) -> dict[str, float]:
    hits = misses = extras = switches = 0
    last: dict[int, int] = {}
    before: dict[int, int] = {}
    for true, ids, overlaps in rows:
        kept = np.array([[before.get(t, -1) == i for i in ids.tolist()] for t in true.tolist()]).reshape(overlaps.shape)
        scores = np.where(overlaps < _MATCH - _EPSILON, 0, 1000 * kept + overlaps)
        i, j = linear_sum_assignment(-scores)
        is_hit = scores[i, j] > _EPSILON
        pairs = list(zip(true[i[is_hit]].tolist(), ids[j[is_hit]].tolist(), strict=True))
        switches += sum(last.get(t, k) != k for t, k in pairs)
        last.update(pairs)
        before = dict(pairs) if overlaps.size else before  # as TrackEval, which skips such frames
        hits, misses, extras = hits + len(pairs), misses + len(true) - len(pairs), extras + len(ids) - len(pairs)
    return {"MOTA": 100 * (hits - extras - switches) / max(1, hits + misses), "switches": float(switches)}


def _seen(frames: Sequence[Tracked]) -> dict[int, list[tuple[float, int, int]]]:
    """Per thing the time, identity and class of its detections, those of two things assigned to the closer one."""
    seen: dict[int, list[tuple[float, int, int]]] = {}
    for frame in frames:
        i, j = linear_sum_assignment(-frame.overlaps)
        for thing, row in zip(i.tolist(), j.tolist(), strict=True):
            if frame.overlaps[thing, row] >= _MATCH:
                at = frame.time_s, int(frame.ids[row]), int(frame.classes[row])
                seen.setdefault(int(frame.true_ids[thing]), []).append(at)
    return seen


def _gaps(frames: Sequence[Tracked]) -> dict[str, float]:
    """How many times a thing has no detection for GAP_S, and how often its identity is the same before and after.

    That is, the last identity in the second before the gap is the first one in the second after it. "hidden" are those
    in which it could not be seen for as long; in the others it was only missed.
    """
    counts = Counter(gaps=0, kept=0, hidden=0, kept_hidden=0)
    visible: dict[int, list[float]] = {}
    for frame in frames:
        for thing in frame.true_ids.tolist():
            visible.setdefault(thing, []).append(frame.time_s)
    for thing, moments in _seen(frames).items():
        for k in range(1, len(moments)):
            end, begin = moments[k - 1][0], moments[k][0]
            if begin - end < GAP_S:
                continue
            before = [i for time_s, i, _ in moments[:k] if i >= 0 and time_s >= end - _BACK_S]
            after = [i for time_s, i, _ in moments[k:] if i >= 0 and time_s <= begin + _BACK_S]
            is_kept = bool(before and after and before[-1] == after[0])
            shown = [time_s for time_s in visible[thing] if end <= time_s <= begin]
            is_hidden = bool(max(np.diff(shown)) >= GAP_S)
            counts.update(gaps=1, kept=is_kept, hidden=is_hidden, kept_hidden=is_hidden and is_kept)
    return {name: float(count) for name, count in counts.items()}


def _flips(frames: Sequence[Tracked]) -> float:
    """How often the class of a thing changes from one of its tracked detections to the next."""
    classes = ([c for _, i, c in moments if i >= 0] for moments in _seen(frames).values())
    return float(sum(a != b for each in classes for a, b in pairwise(each)))
