"""Pairing: each planted difference is found, and shifts nothing else."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from maskjet.masks import coco_rle
from maskjet.parity.pair import Pairing, box_iou, compare, pair
from tests.parity.records import detections

SIZE = (20, 30)
BOXES = [(1, 1, 9, 9), (2, 2, 10, 10), (15, 3, 25, 12), (0, 12, 8, 19)]


def found(boxes=BOXES, class_id=(0, 1, 0, 0), confidence=(0.9, 0.8, 0.7, 0.6), flipped=()):
    return detections(boxes, class_id, confidence, flipped, size_hw=SIZE, class_names={})


def test_one_counterpart_is_taken_once():
    twice = found([BOXES[0], BOXES[0]], (0, 0), (0.9, 0.8))
    result = pair(twice, found(BOXES[:1], (0,), (0.9,)))
    assert (result.matched, result.missing) == (1, 1)


def test_images_add_up():
    nothing = found([], (), ())
    assert pair(nothing, nothing).share == 1
    assert (pair(nothing, found()).extra, pair(found(), nothing).missing) == (4, 4)
    swapped = pair(found(), found(class_id=(0, 1, 2, 0)))
    assert (swapped.matched, swapped.missing, swapped.extra) == (3, 1, 1)
    assert (swapped.share, swapped.swapped_confidences) == (pytest.approx(3 / 5), [pytest.approx(0.7)])
    result = Pairing()
    result.add(pair(found(), found()))
    result.add(pair(found(), found(BOXES[:1], (0,), (0.9,))))
    assert (result.matched, result.missing) == (5, 3)
    assert len(result.mask_ious) == 5


def test_overlap_of_boxes():
    boxes = np.array([[0, 0, 2, 2], [5, 5, 5, 5]], np.float32)
    assert box_iou(boxes, boxes).tolist() == [[1, 0], [0, 1]]
    line, lower = np.array([[30, 4, 30, 14]], np.float32), np.array([[30, 9, 30, 19]], np.float32)
    assert box_iou(line, line).tolist() == [[1]]
    assert box_iou(line, lower)[0, 0] == pytest.approx(1 / 3)
    assert box_iou(boxes[:1], np.array([[1, 0, 3, 2]], np.float32))[0, 0] == pytest.approx(1 / 3)


def differences(actual):
    return [str(difference) for difference in compare(found(), actual)[1]]


def test_planted_faults_are_named():
    assert differences(found()) == []
    fewer = found([*BOXES[:2], BOXES[3]], (0, 1, 0), (0.9, 0.8, 0.6))
    assert differences(fewer) == ["dropped: 0 0.70 at (15, 3) to (25, 12)"]
    more = found([*BOXES, (26, 14, 30, 20)], (0, 1, 0, 0, 3), (0.9, 0.8, 0.7, 0.6, 0.5))
    assert differences(more) == ["added: 3 0.50 at (26, 14) to (30, 20)"]
    swapped = found(class_id=(0, 1, 0, 2))
    assert differences(swapped) == ["class swapped: 0 0.60 at (0, 12) to (8, 19) is 2 0.60"]
    flipped = found(flipped=(3,))
    assert differences(flipped) == ["mask changed, IoU 0.9821: 0 0.60 at (0, 12) to (8, 19)"]
    unsure = found(confidence=(0.9, 0.8, 0.7, 0.59))
    assert differences(unsure) == ["confidence changed by 0.0100: 0 0.60 at (0, 12) to (8, 19)"]
    shifted = found([*BOXES[:3], (0, 13, 8, 20)])
    assert differences(shifted) == [
        "box moved by 1.00 px: 0 0.60 at (0, 12) to (8, 19)",
        "mask changed, IoU 0.7500: 0 0.60 at (0, 12) to (8, 19)",
    ]


def test_a_confidence_that_crosses_a_limit_is_no_loss():
    result = pair(found(), found(confidence=(0.9, 0.8, 0.699, 0.6))).above(0.6995)
    assert (result.matched, result.missing, result.extra) == (3, 0, 0)
    assert max(result.confidence_differences) == pytest.approx(1e-3, rel=1e-3)
    assert len(result.mask_ious) == len(result.box_ious) == len(result.strings_are_equal) == 3
    fewer = pair(found(), found(BOXES[1:3], (1, 0), (0.8, 0.7)))
    assert (fewer.missing, fewer.above(0.65).missing) == (2, 1)


def test_rounding_is_told_from_a_change():
    """Of 30 pixels, the longer side, 2**-21 are 1.4e-5; a float32 of 20 is exact to 2**-19."""
    box, rest = (15, 3, 25, 12), [BOXES[0], BOXES[1], BOXES[3]]
    for moved, is_rounding in ((2**-19, True), (2**-15, False)):
        boxes = [rest[0], rest[1], (15, 3, 25 + moved, 12), rest[2]]
        actual = replace(found(), xyxy=np.array(boxes, np.float32))
        (difference,) = compare(found(), actual)[1]
        assert (difference.kind, difference.is_rounding) == ("box moved", is_rounding)
        assert difference.amount == moved
        assert f"by {moved:.0e} px: 0 0.70 at ({box[0]}, " in str(difference)  # not "0.00 px"
    for ulps, is_rounding in ((1, True), (8, True), (9, False)):
        unsure = np.float32([0.9, 0.8, 0.7, 0.6])
        unsure[3] -= ulps * np.spacing(unsure[3])
        (difference,) = compare(found(), replace(found(), confidence=unsure))[1]
        assert (difference.kind, difference.is_rounding) == ("confidence changed", is_rounding)
        assert f"by {difference.amount:.0e}: " in str(difference)


def test_masks_of_the_same_pixels_in_other_words_have_not_changed():
    one = found()
    uncompressed = []
    for rle in one.rle:
        runs = [len(list(run)) for _, run in groupby(coco_rle.decode(rle).ravel(order="F"))]
        uncompressed.append({**rle, "counts": runs})
    differences = compare(one, replace(one, rle=uncompressed))[1]
    assert {difference.kind for difference in differences} == {"mask changed"}
    assert all(difference.is_rounding for difference in differences)
    assert "mask changed, IoU 1.0000" in str(differences[0])


def test_one_pixel_of_a_large_mask_is_a_change():
    size_hw = (400, 400)
    one, other = (
        detections([(0, 0, 400, 400)], (0,), (0.9,), flipped, size_hw=size_hw, class_names={}) for flipped in ((), (0,))
    )
    (difference,) = compare(one, other)[1]
    assert not difference.is_rounding
    assert str(difference).startswith("mask changed, IoU 1 - 6e-06: ")


def test_names_are_not_built_again_for_each_difference(monkeypatch):
    many = found()
    monkeypatch.setattr(type(many), "class_name", property(lambda _: pytest.fail("this takes quadratic time")))
    names = [difference.detection.split()[0] for difference in compare(many, many[:0])[1]]
    assert names == ["0", "1", "0", "0"]
