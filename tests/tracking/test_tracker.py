"""The tracker, on things that move as a test says."""

from dataclasses import replace

import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.tracking import Tracker, Zone, smooth
from maskjet.tracking.matching import NEVER, assign

SIZE = (90, 160)


def seen(*boxes, confidence=0.9, class_id=0, size=SIZE, with_masks=True):
    """Detections of boxes; of those behind an earlier one the rest, and nothing if all is hidden."""
    left = np.ones(size, bool)
    masks = []
    for x1, y1, x2, y2 in boxes:
        mask = np.zeros(size, bool)
        mask[max(round(y1), 0) : max(round(y2), 0), max(round(x1), 0) : max(round(x2), 0)] = True
        masks.append(mask & left)
        left &= ~mask
    masks = [mask for mask in masks if mask.any()]
    rle = coco_rle.encode(np.array(masks, bool).reshape(-1, *size))
    return Detections(
        image_size=size,
        xyxy=np.array([coco_rle.to_xyxy(one) for one in rle], np.float32).reshape(-1, 4),
        confidence=np.broadcast_to(np.array(confidence, np.float32), len(rle)).copy(),
        class_id=np.broadcast_to(np.array(class_id, np.int32), len(rle)).copy(),
        rle=rle if with_masks else None,
    )


@pytest.mark.parametrize("most", [9, 60])
def test_assignment_has_the_highest_sum(most):
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(most)
    for number in range(200):
        shape = rng.integers(0, most, 2)
        scores = rng.integers(1, 4, shape) / 2 if number % 2 else rng.random(shape)  # some with ties
        scores[rng.random(shape) < rng.random()] = NEVER
        row_of = assign(scores)
        columns = np.flatnonzero(row_of >= 0)
        expected = scores[optimize.linear_sum_assignment(scores, maximize=True)]
        assert len(set(row_of[columns])) == len(columns) == np.count_nonzero(expected > 0)
        assert scores[row_of[columns], columns].sum() == pytest.approx(expected[expected > 0].sum())


def moved(x, y=30, width=12, height=30):
    return x, y, x + width, y + height


def track(frames, tracker=None):
    """The ids in each frame, at 30 frames per second."""
    tracker = tracker or Tracker()
    return [tracker.update(found, index / 30).track_id.tolist() for index, found in enumerate(frames)]


@pytest.mark.parametrize("with_masks", [True, False])
def test_things_keep_their_ids(with_masks):
    frames = [seen(moved(10 + 2 * i), moved(130 - 2 * i, 55, 20), with_masks=with_masks) for i in range(20)]
    assert track(frames) == [[1, 2]] * 20
    turned = [found[::-1] if index % 2 else found for index, found in enumerate(frames)]
    assert track(turned) == [[1, 2], [2, 1]] * 10


def test_rows_stay_as_they_are():
    tracker, given = Tracker(), seen(moved(10), moved(60), confidence=[0.9, 0.3], class_id=[4, 2])
    for index in range(3):
        found = tracker.update(given, index)
        assert replace(found, track_id=None, track_class_id=None).as_dict() == given.as_dict()
        assert found.class_names is given.class_names
        assert (found.track_id.dtype, found.track_class_id.dtype) == (np.int64, np.int64)
    assert found.track_id.tolist() == [1, -1]  # the second is below the threshold
    assert len(tracker.update(seen(), 4).track_id) == 0


def test_weak_detections_continue_tracks_and_begin_none():
    confidences = [0.9, 0.3, 0.15, 0.3, 0.9]
    frames = [seen(moved(10 + i), moved(90), confidence=[each, 0.3]) for i, each in enumerate(confidences)]
    assert track(frames) == [[1, -1]] * 5
    frames = [replace(found, confidence=np.full(2, 0.05, np.float32)) for found in frames]
    assert track([seen(moved(10)), *frames[1:]])[1:] == [[-1, -1]] * 4


def test_a_new_thing_is_confirmed_when_it_is_seen_again_or_is_sure():
    first = seen(moved(10))
    unsure, sure = seen(moved(10), moved(90), confidence=0.75), seen(moved(10), moved(90), confidence=0.9)
    assert track([first, unsure, unsure, unsure]) == [[1], [1, -1], [1, 2], [1, 2]]
    assert track([first, sure, sure]) == [[1], [1, 2], [1, 2]]
    doubtful = seen(moved(10), moved(90), confidence=[0.9, 0.55])
    ids = [each[-1] for each in track([first, *[doubtful] * 12])]
    assert ids[:9] == [1] + [-1] * 8  # until there were enough of them
    assert ids[-1] == 2


def test_the_class_is_voted_for():
    classes = [3, 3, 1, 3, 1, 1]
    tracker = Tracker()
    voted = [tracker.update(seen(moved(10 + i), class_id=each), i / 30) for i, each in enumerate(classes)]
    assert [found.class_id.tolist() for found in voted] == [[each] for each in classes]
    assert [found.track_class_id.tolist() for found in voted] == [[3]] * 6
    assert [found.track_id.tolist() for found in voted] == [[1]] * 6


def test_a_thing_behind_another_comes_out_with_its_id():
    """A person of 12 pixels passes behind a bus of 60 in 1.2 s, of which nothing is seen for 0.8 s."""
    frames = [seen((50, 5, 110, 85), moved(10 + 2 * i)) for i in range(60)]
    counts = [len(found) for found in frames]
    assert counts.count(1) >= 24
    ids = track(frames)
    assert [each for each in ids if len(each) == 2] == [[1, 2]] * counts.count(2)


def test_a_thing_that_leaves_the_image_comes_back_with_its_id():
    out_and_in = [*range(20, -14, -2), *[-14] * 40, *range(-14, 20, 2)]
    ids = track([seen((80, 5, 120, 85), moved(x)) for x in out_and_in])
    assert {tuple(each) for each in ids} == {(1, 2), (1,)}


def test_a_thing_that_vanishes_where_it_would_be_seen_is_forgotten():
    ids = track([seen(moved(10), moved(90)), *[seen(moved(90))] * 60, seen(moved(10), moved(90))])
    assert ids[0] == [1, 2]
    assert ids[-1] == [3, 2]
    ids = track([seen(moved(10), moved(90)), *[seen(moved(90))] * 15, seen(moved(10), moved(90))])
    assert ids[-1] == [1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"found": seen(moved(10), size=(91, 160))},
        {"time_s": 0.01},
        {"time_s": 4.1},
        {"found": seen(*[moved(x, 5) for x in (60, 90, 120)])},  # none of three goes on
    ],
)
def test_it_begins_anew(change):
    tracker = Tracker()
    still = seen(*[moved(x, 50) for x in (10, 30, 50)])
    for index in range(3):
        tracker.update(still, index / 30)
    found = change.get("found", still)
    time_s = change.get("time_s", 0.1)
    ids = tracker.update(found, time_s).track_id.tolist()
    assert ids == [*range(4, 4 + len(found))]
    assert tracker.update(found, time_s + 4).track_id.tolist() == ids


def test_frames_without_times_follow_each_other():
    tracker, timed = Tracker(), Tracker()
    for index in range(30):
        found = seen(moved(10 + 2 * index), moved(120, confidence := 50), confidence=0.6 + 0.01 * (confidence % 2))
        a, b = tracker.update(found), timed.update(found, 7 + index / 30)
        assert a.track_id.tolist() == b.track_id.tolist()


@pytest.mark.parametrize("confidence", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_harm_nothing(confidence):
    good = seen(moved(10), moved(60))
    bad = replace(
        good,
        xyxy=np.array([[np.nan, 0, np.inf, 5], good.xyxy[1]], np.float32),
        confidence=np.array([confidence, 0.9], np.float32),
    )
    ids = track([good, bad, bad, good])
    assert [each[1] for each in ids] == [2] * 4
    assert ids[3][0] in (1, 3)  # the box of infinite confidence is a thing, too


@pytest.mark.parametrize(
    ("use", "argument"),
    [
        (lambda: Tracker(threshold=1.5), "threshold"),
        (lambda: Tracker().update(seen(), float("nan")), "time_s"),
        (lambda: Tracker().update(replace(seen(moved(3)), rle=[{"size": [*SIZE], "counts": b"0"}])), "counts"),
        (lambda: smooth([], longest_s=-1), "longest_s"),
        (lambda: smooth([(seen(moved(3)), 0)]), "results"),
        (lambda: Zone([(0, 0), (9, 0), (9, 9)]).update(seen(moved(3))), "found"),
    ],
)
def test_wrong_arguments_are_named(use, argument):
    with pytest.raises(InputError) as caught:
        use()
    assert caught.value.argument == argument
