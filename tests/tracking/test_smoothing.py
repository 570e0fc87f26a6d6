"""Smoothing of a whole file's tracks, on things that move as a test says."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.errors import OutputError
from maskjet.masks import coco_rle
from maskjet.tracking import Tracker, smooth, smoothing
from tests.tracking.test_tracker import SIZE, moved, seen


def given(*frames):
    """Results, of frames as pairs of detections and ids, at 30 frames per second."""
    for index, (found, ids) in enumerate(frames):
        yield found.with_tracks(np.array(ids, np.int64)), index / 30


def ids_of(smoothed):
    return [found.track_id.tolist() for found in smoothed]


def test_a_gap_is_filled_with_moved_boxes_and_masks():
    whole = [seen(moved(10 + 3 * i, 30 - i), moved(100, 40)) for i in range(12)]
    results = [(found, [4, 9]) for found in whole]
    for index in range(3, 9):
        results[index] = whole[index][1], [9]
    smoothed = list(smooth(given(*results)))
    for index, (found, true) in enumerate(zip(smoothed, whole, strict=True)):
        is_filled = index in range(3, 9)
        assert found.filled.tolist() == ([False, True] if is_filled else [False, False])
        assert found.track_id.tolist() == ([9, 4] if is_filled else [4, 9])
        same = found[::-1] if is_filled else found
        np.testing.assert_allclose(same.xyxy, true.xyxy, atol=1e-4)
        assert same.rle == true.rle
    assert [found.confidence[-1] for found in smoothed[3:9]] == [0] * 6
    boxes = [(replace(found, rle=None), ids) for found, ids in results]
    for found, other in zip(smooth(given(*boxes)), smoothed, strict=True):
        assert found.rle is None
        np.testing.assert_array_equal(found.xyxy, other.xyxy)


@pytest.mark.parametrize(
    ("missed", "size", "options", "count"),
    [
        (range(2, 19), SIZE, {}, 17),
        (range(2, 21), SIZE, {}, 0),
        (range(2, 21), SIZE, {"longest_s": 1}, 19),
        (range(2, 9), (91, 160), {}, 0),
    ],
)
def test_a_gap_that_is_too_long_or_has_frames_of_another_size_is_not_filled(missed, size, options, count):
    results = [(seen(moved(10 + i)), [1]) for i in range(30)]
    for index in missed:
        results[index] = seen(size=size), []
    assert sum(len(found) for found in smooth(given(*results), **options)) == 30 - len(missed) + count


def test_what_was_seen_before_it_had_an_id_has_it():
    ids = [[-1], [-1], [], [-1], *[[6]] * 4]
    results = [(seen(moved(10 + 2 * i)) if own else seen(), own) for i, own in enumerate(ids)]
    smoothed = list(smooth(given(*results)))
    assert ids_of(smoothed) == [[6]] * 8
    assert [found.filled.item() for found in smoothed] == [False, False, True, *[False] * 5]
    far = [(seen(moved(80)) if index < 4 and own else found, own) for index, (found, own) in enumerate(results)]
    assert ids_of(smooth(given(*far)))[:4] == [[-1], [-1], [], [-1]]


def test_a_late_adoption_is_corrected_backwards():
    """A thing that is lost for 5 frames, comes back as track 8, and 4 frames later is track 3 again."""
    ids = [*[[3]] * 6, *[[]] * 5, *[[8]] * 4, *[[3]] * 6]
    results = [(seen(moved(10 + 2 * i)) if own else seen(), own) for i, own in enumerate(ids)]
    smoothed = list(smooth(given(*results)))
    assert ids_of(smoothed) == [[3]] * 21
    assert sum(found.filled.item() for found in smoothed) == 5
    old = [(found, [8] if index < 6 and own else own) for index, (found, own) in enumerate(results)]
    assert ids_of(smooth(given(*old)))[:15] == [[8]] * 15  # which is no young track


def test_the_class_is_voted_for_over_the_whole_track():
    classes = [1, 1, 3, 3, 3, 1]
    results = [(seen(moved(10 + i), class_id=each), [1]) for i, each in enumerate(classes)]
    results[3] = seen(), []
    results[5] = seen(moved(15), class_id=3), [1]
    smoothed = list(smooth(given(*results)))
    assert [found.track_class_id.item() for found in smoothed] == [3] * 6
    assert [found.class_id.item() for found in smoothed] == [1, 1, 3, 3, 3, 3]


def test_ghosts_go_but_for_those_that_the_file_cuts_off():
    still = moved(100, 40)
    results = [(seen(still), [1]) for _ in range(12)]
    results[0] = seen(still, moved(10)), [1, -1]
    results[11] = seen(still, moved(10)), [1, 7]
    for index in (4, 5):  # of two frames
        results[index] = seen(still, moved(40)), [1, 5]
    for index in (7, 8, 9):  # of three, never confirmed
        results[index] = seen(still, moved(70)), [1, -1]
    expected = [[1, -1], *[[1]] * 6, *[[1, -1]] * 3, [1], [1, 7]]
    assert ids_of(smooth(given(*results))) == expected
    assert ids_of(smooth(given(*results), shortest=2))[4:6] == [[1, 5]] * 2


def test_weak_detections_are_kept_where_they_continue_a_track():
    tracker, confidences = Tracker(), [0.9, 0.9, 0.3, 0.9, 0.3, 0.2]
    results = []
    for index, each in enumerate(confidences):
        found = seen(moved(10 + index), moved(120), confidence=[each, 0.3])
        results.append((tracker.update(found[np.argsort(-found.confidence)], index / 30), index / 30))
    smoothed = list(smooth(results, threshold=0.5))
    assert ids_of(smoothed) == [[1]] * 6
    assert [found.filled.item() for found in smoothed] == [each < 0.5 for each in confidences]
    assert [found.confidence.item() for found in smoothed] == pytest.approx(confidences)


def test_results_may_come_from_json_lines_and_masks_go_to_a_file(monkeypatch):
    results = [(seen(moved(10 + i), moved(90)), [1, 2]) for i in range(8)]
    results[4] = seen(), []
    expected = [found.as_dict() for found in smooth(given(*results))]
    lines = [json.dumps(found.as_dict()) for found, _ in given(*results)]
    monkeypatch.setattr(smoothing, "_IN_MEMORY", 1)
    again = smooth((Detections.from_dict(json.loads(line)), None) for line in lines)
    assert [found.as_dict() for found in again] == expected
    assert [each["filled"] for each in expected[4]["detections"]] == [True, True]


def test_a_full_disk_is_named(monkeypatch):
    monkeypatch.setattr(smoothing.tempfile, "SpooledTemporaryFile", lambda _: io.FileIO("/dev/full", "w"))
    with pytest.raises(OutputError, match=r"^TMPDIR must be writable, .* is not: No space left"):
        smooth(given((seen(moved(3)), [1])))


def test_nothing_is_nothing():
    assert list(smooth([])) == []
    (found,) = smooth([(seen(), None)])
    assert (len(found), found.rle, found.track_id.dtype) == (0, [], np.int64)
    assert coco_rle.decode(seen(moved(3)).rle[0]).any()
