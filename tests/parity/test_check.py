"""Checks: a planted fault is reported, by its name, and nothing else is."""

import numpy as np
import pytest

from maskjet.errors import InputError
from maskjet.parity.check import check
from maskjet.parity.pair import KINDS
from tests.parity.records import FAULTS, IMAGES, detections


def test_the_same_is_the_same(make):
    report = check(make(), make("two"), confidences=[0.8])
    assert (report.images, report.same_images, report.other_counts, report.worst) == (4, 4, 0, [])
    everything, certain = report.measurements
    assert (everything.confidence, everything.matched, everything.equal_strings, everything.share) == (0.05, 12, 12, 1)
    assert (certain.confidence, certain.matched) == (0.8, 4)
    assert everything.mean_mask_iou == everything.min_box_iou == 1
    assert set(report.kinds.values()) == {0}
    assert "nothing differs" in str(report)


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_fault_is_reported_by_name(kind, make):
    report = check(make(), make("two", [detections(), FAULTS[kind]]))
    expected = dict.fromkeys(KINDS, 0) | {kind: 1}
    if kind == "box moved":
        expected["mask changed"] = 1  # the thing moved
    assert report.kinds == expected
    assert report.same_images == 3
    (worst,) = report.worst
    assert (worst.number, worst.name) == (1, "street 6")
    assert {difference.kind for difference in worst.differences} == {name for name, n in expected.items() if n}
    assert str(worst.differences[0]).startswith(kind)
    assert f"street 6:\n  {kind}" in str(report)
    m = report.measurements[0]
    unmatched = {"dropped": (1, 0, 0), "added": (0, 1, 0), "class swapped": (1, 1, 1)}.get(kind, (0, 0, 0))
    assert (m.dropped, m.added, m.swapped) == unmatched
    assert report.other_counts == (kind in ("dropped", "added"))


def test_amounts(make):
    moved = check(make(), make("two", [FAULTS["box moved"]])).measurements[0]
    assert moved.box_difference_px.max == 3
    assert moved.min_box_iou == pytest.approx(37 / 43)
    assert moved.min_mask_iou == pytest.approx(37 / 43)
    assert moved.mean_mask_iou == pytest.approx((11 + 37 / 43) / 12)
    flipped = check(make(), make("two", [FAULTS["mask changed"]])).measurements[0]
    assert (flipped.equal_strings, flipped.min_mask_iou) == (11, pytest.approx(1599 / 1600))
    unsure = check(make(), make("two", [FAULTS["confidence changed"]])).measurements[0]
    assert unsure.confidence_difference.max == pytest.approx(0.05)
    assert unsure.confidence_difference.mean == pytest.approx(0.05 / 12)


def test_the_worst_come_first_and_are_ten_at_most(make):
    everything = [FAULTS["mask changed"], FAULTS["class swapped"], FAULTS["confidence changed"], FAULTS["dropped"]]
    report = check(make(), make("two", everything))
    assert [image.number for image in report.worst] == [1, 3, 0, 2]  # the lost ones were as certain: in their order


def test_rounding_is_counted_but_none_of_the_worst(make):
    ulps = np.spacing(np.float32(0.9), dtype=np.float32)
    rounded = detections(confidence=(0.9 - 4 * ulps, 0.75, 0.5))
    report = check(make(), make("two", [rounded, FAULTS["confidence changed"]]))
    assert report.kinds["confidence changed"] == 2
    assert report.rounded == dict.fromkeys(KINDS, 0) | {"confidence changed": 1}
    assert (report.same_images, report.rounded_images) == (2, 1)
    assert [image.number for image in report.worst] == [1]
    assert "4 images: 2 the same bit for bit, 1 but for rounding, 0 with another count" in str(report)
    assert "confidence changed: 2 (1 within rounding)" in str(report)
    assert report.as_dict()["rounded"]["confidence changed"] == 1
    assert report.measurements[0].confidence_difference.max == pytest.approx(0.05)  # measured as before


def test_one_side_has_nothing_or_is_of_other_images(make):
    report = check(make(), make("two", [detections(())] * 4))
    m = report.measurements[0]
    assert (m.matched, m.dropped, m.mean_mask_iou, m.share) == (0, 12, None, 0)
    assert "-" in report.rows()[1]
    with pytest.raises(InputError, match="number 0 is not: 'street 5' and 'street 8' have other pixels"):
        check(make(), make("two", images=IMAGES[::-1]))
    with pytest.raises(InputError, match="must be of the same images, 'one' has 4 and 'two' 3"):
        check(make(), make("two", images=IMAGES[:3]))
