"""Scores of trackers, and the streets that they are scored on."""

import numpy as np
import pytest

from benchmarks.tracking_scores import Tracked, score


def frames(ids, *, overlap=0.8, classes=None):
    """Two things in some frames, 0.1 s apart; the ids of what was found of each, None for nothing."""
    made = []
    for index, row in enumerate(ids):
        found = [k for k, each in enumerate(row) if each is not None]
        overlaps = np.zeros((2, len(found)))
        overlaps[found, range(len(found))] = overlap
        of_class = np.array([(classes or {}).get(index, 0)] * len(found))
        named = np.array([row[k] for k in found], np.int64)
        made.append(Tracked(index / 10, np.array([7, 9]), named, of_class, overlaps))
    return made


def test_scores_of_what_is_counted_by_hand():
    whole = score(frames([(1, 2)] * 10))
    assert (whole["IDF1"], whole["MOTA"], whole["switches"], whole["gaps"]) == (100, 100, 0, 0)
    assert (whole["DetA"], whole["AssA"]) == pytest.approx((100 * 16 / 19, 100 * 16 / 19))  # alpha up to 0.8, of 19
    halves = score(frames([(1, 2)] * 5 + [(2, 1)] * 5, overlap=1))
    assert (halves["DetA"], halves["AssA"]) == pytest.approx((100, 100 / 3))  # 5 of 10 + 10 - 5
    assert (halves["IDF1"], halves["switches"], halves["MOTA"]) == (50, 2, 90)
    missed = score(frames([(1, 2)] * 5 + [(-1, None)] * 3 + [(1, 3)] * 2, overlap=1))
    assert (missed["MOTA"], missed["gaps"], missed["kept"], missed["hidden"]) == (100 * (14 - 1) / 20, 1, 0, 0)
    assert score(frames([(1, 2)] * 6, classes={2: 1}))["flips"] == 4
    assert score(frames([(-1, -1)] * 3))["HOTA"] == 0


def test_they_equal_those_of_trackeval():
    metrics = pytest.importorskip("trackeval.metrics")
    random = np.random.default_rng(0)
    made = []
    for index in range(40):
        things = np.sort(random.choice(8, random.integers(0, 8), replace=False))
        overlaps = random.random((len(things), random.integers(0, 9))) ** 2
        overlaps /= np.maximum(1, overlaps.sum(0, keepdims=True)) if len(things) else 1
        ids = random.permutation(12)[: overlaps.shape[1]]
        made.append(Tracked(index / 30, things, ids, np.zeros(len(ids), np.int64), overlaps))
    data = {
        "num_timesteps": len(made),
        "num_gt_ids": 8,
        "num_tracker_ids": 12,
        "num_gt_dets": sum(len(each.true_ids) for each in made),
        "num_tracker_dets": sum(len(each.ids) for each in made),
        "gt_ids": [each.true_ids for each in made],
        "tracker_ids": [each.ids for each in made],
        "similarity_scores": [each.overlaps for each in made],
    }
    expected = metrics.HOTA().eval_sequence(data)
    actual = score(made)
    for name in ("HOTA", "DetA", "AssA"):
        assert actual[name] == pytest.approx(100 * expected[name].mean())
    clear = metrics.CLEAR().eval_sequence(data)
    assert (actual["MOTA"], actual["switches"]) == pytest.approx((100 * clear["MOTA"], clear["IDSW"]))
    assert actual["IDF1"] == pytest.approx(100 * metrics.Identity().eval_sequence(data)["IDF1"])
