"""Rotated boxes against every direction between two corners of pixels, OpenCV and shapely."""

import cv2
import hypothesis.strategies as st
import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis.extra import numpy as hypothesis_numpy

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.masks import coco_rle

BOX = (1, 2, 4, 7)


def found_on(*masks):
    """Detections of these masks, each with the box BOX."""
    planes = np.array(masks, bool)
    count = len(planes)
    boxes, scores = np.array([BOX] * count, np.float32), np.full(count, 0.5, np.float32)
    return Detections(planes.shape[1:], boxes, scores, np.zeros(count, np.int32), coco_rle.encode(planes))


def rotated(mask):
    return found_on(mask).rotated_boxes()[0]


def corners_of(mask):
    """Corners of the pixels' areas, int64 [k, 2]."""
    y, x = np.nonzero(mask)
    return np.unique(np.concatenate([np.stack([x + i, y + j], 1) for i in (0, 1) for j in (0, 1)]), axis=0)


def sizes_along(points, direction):
    """Width and height of the rectangle around points that has a side along a direction."""
    return np.ptp(points @ np.transpose([direction, (-direction[1], direction[0])]), axis=0) / np.hypot(*direction)


def ellipse(shape, *args):
    return cv2.ellipse(np.zeros(shape, np.uint8), *args, 0, 360, 1, -1)


def check(mask, box):
    """Check that a box is the least rectangle around a mask, in the stated order."""
    points, sides = corners_of(mask), np.roll(box, -1, axis=0) - box
    lengths = np.hypot(*sides.T)
    assert box.dtype == np.float32
    assert box.tolist()[0] == min(box.tolist(), key=lambda corner: corner[::-1])
    ahead = np.roll(sides, -1, axis=0)
    turns = sides[:, 0] * ahead[:, 1] - sides[:, 1] * ahead[:, 0]
    np.testing.assert_allclose(turns, lengths * np.roll(lengths, -1), rtol=1e-5)  # right angles, clockwise
    np.testing.assert_allclose(sizes_along(points, sides[0]), lengths[:2], rtol=1e-5)
    given = shapely.MultiPoint(points)
    assert shapely.Polygon(box).buffer(1e-4 * lengths.max()).covers(given)
    *_, (width, height), _ = cv2.minAreaRect(points.astype(np.float32))
    for area in (width * height, shapely.oriented_envelope(given).area):
        assert lengths[0] * lengths[1] == pytest.approx(area, rel=1e-5)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (np.pad([[1]], ((2, 3), (4, 1))), [(4, 2), (5, 2), (5, 3), (4, 3)]),
        (np.ones((1, 7)), [(0, 0), (7, 0), (7, 1), (0, 1)]),
        (np.ones((7, 1)), [(0, 0), (1, 0), (1, 7), (0, 7)]),
        (np.eye(3), [(0.5, -0.5), (3.5, 2.5), (2.5, 3.5), (-0.5, 0.5)]),
        (np.eye(3)[::-1], [(2.5, -0.5), (3.5, 0.5), (0.5, 3.5), (-0.5, 2.5)]),
        (np.ones((4, 6)), [(0, 0), (6, 0), (6, 4), (0, 4)]),
        (np.pad(np.zeros((2, 2)), 1, constant_values=1), [(0, 0), (4, 0), (4, 4), (0, 4)]),
        ([[1, 0, 0, 0, 1]], [(0, 0), (5, 0), (5, 1), (0, 1)]),
        ([[0, 1, 0], [1, 1, 1], [0, 1, 0]], [(1.5, -0.5), (3.5, 1.5), (1.5, 3.5), (-0.5, 1.5)]),
        (np.tri(3), [(0, 0), (3, 0), (3, 3), (0, 3)]),
        (np.zeros((9, 9)), [(1, 2), (4, 2), (4, 7), (1, 7)]),
    ],
    ids=["pixel", "row", "column", "diagonal", "rising", "whole image", "hole", "parts", "plus", "upright", "empty"],
)
def test_corners_of(mask, expected):
    assert rotated(mask).tolist() == [list(corner) for corner in expected]


def test_of_equal_areas_the_first_side_clockwise_from_the_left_counts():
    mask = np.array([[0, 1, 1, 0, 0], [1, 1, 1, 0, 1], [0, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0]])
    areas = [sizes_along(corners_of(mask), direction).prod() for direction in ((2, 1), (-1, 3))]
    assert areas[0] == pytest.approx(areas[1], rel=1e-14)
    np.testing.assert_allclose(rotated(mask), [(1, -1), (5.8, 1.4), (3.8, 5.4), (-1, 3)], rtol=1e-6)


def test_boxes_of_touching_masks_touch():
    mask = ellipse((60, 80), (40, 30), (30, 12), 25)
    left = np.arange(80) < 40
    found = found_on(mask & left, mask & ~left, left * np.ones((60, 1)), ~left * np.ones((60, 1)))
    boxes = found.rotated_boxes()
    for part, box in zip(found.masks(), boxes, strict=True):
        check(part, box)
    assert shapely.Polygon(boxes[2]).touches(shapely.Polygon(boxes[3]))


@settings(max_examples=60)
@given(hypothesis_numpy.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_no_direction_gives_a_smaller_rectangle(mask):
    if not mask.any():
        return
    box, points = rotated(mask), corners_of(mask)
    check(mask, box)
    ways = np.unique((points[:, None] - points).reshape(-1, 2), axis=0)
    least = min(sizes_along(points, way).prod() for way in ways if way.any())
    assert np.prod(sizes_along(points, box[1] - box[0])) == pytest.approx(least, rel=1e-5)


@pytest.mark.parametrize("angle", [17, 45, 133])
def test_large_masks_agree_with_opencv(angle):
    mask = ellipse((240, 360), (180, 120), (150, 40), angle)
    for part in (mask, mask & (np.arange(360) < 170)):
        check(part, rotated(part))


def test_a_box_stands_in_where_there_are_no_masks():
    x1, y1, x2, y2 = BOX
    expected = [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
    found = found_on(np.eye(9), np.zeros((9, 9)))
    assert found.rotated_boxes()[1].tolist() == expected
    boxes = Detections((9, 9), found.xyxy, found.confidence, found.class_id)
    assert boxes.rotated_boxes().tolist() == [expected] * 2
    assert {nothing.rotated_boxes().shape for nothing in (found[:0], boxes[:0])} == {(0, 4, 2)}


def test_wide_masks_take_no_memory_for_their_width():
    size = [1, 2**28]
    found = Detections(
        (1, 2**28),
        np.zeros((1, 4), np.float32),
        np.ones(1, np.float32),
        np.zeros(1, np.int32),
        [coco_rle.from_json({"size": size, "counts": [1, 2**28 - 1]})],
    )
    assert found.rotated_boxes().tolist() == [[[1, 0], [2**28, 0], [2**28, 1], [1, 1]]]


def test_malformed_masks_are_refused():
    found = found_on(np.eye(9))
    found.rle[0]["counts"] = b"0"
    with pytest.raises(InputError, match="counts must sum to 9 × 9 = 81, got 0"):
        found.rotated_boxes()
