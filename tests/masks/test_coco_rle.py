"""COCO RLE against pycocotools, byte for byte."""

import cv2
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hypothesis_numpy
from pycocotools import mask as pycoco_mask

from maskjet.errors import InputError
from maskjet.masks import coco_rle


def checkerboard(height, width):
    return (np.indices((height, width)).sum(0) % 2).astype(np.uint8)


def counts_of(string):
    return coco_rle._expand(string, 2**62)[0].tolist()


def single_pixels(height, width):
    masks = np.zeros((4, height, width), np.uint8)
    masks[[0, 1, 2, 3], [0, 0, -1, -1], [0, -1, 0, -1]] = 1
    return masks


AWKWARD = [
    np.zeros((7, 5), np.uint8),
    np.ones((7, 5), np.uint8),
    np.ones((1, 1), bool),
    np.zeros((1, 9), bool),
    1 - checkerboard(301, 200),
    single_pixels(9, 4),
    np.full((4, 4), 255, np.uint8),
    np.zeros((0, 5, 5), bool),
    np.tri(30, 40, dtype=np.uint8)[::-2, ::3],
    np.eye(40, 30, dtype=bool)[::-1],
    np.ones((1100, 2000), np.uint8),
]


def theirs(masks):
    planes = masks if masks.ndim == 3 else masks[None]
    return [pycoco_mask.encode(np.asfortranarray((plane != 0).astype(np.uint8))) for plane in planes]


@pytest.mark.parametrize("masks", AWKWARD, ids=lambda masks: f"{masks.dtype}-{masks.shape}")
def test_awkward_masks_encode_as_pycocotools_does(masks):
    masks.flags.writeable = False
    found = coco_rle.encode(masks)
    assert found == theirs(masks)
    decoded = [coco_rle.decode(rle) for rle in found]
    np.testing.assert_array_equal(np.reshape(decoded, masks.shape), masks != 0)


@settings(max_examples=60)
@given(hypothesis_numpy.arrays(np.bool_, st.tuples(st.integers(1, 40), st.integers(1, 40))))
def test_everything_agrees_with_pycocotools(mask):
    (rle,) = coco_rle.encode(mask)
    assert [rle] == theirs(mask)
    np.testing.assert_array_equal(coco_rle.decode(rle), mask)
    assert coco_rle.area(rle) == pycoco_mask.area(rle) == mask.sum()
    x, y, width, height = pycoco_mask.toBbox(rle)
    assert coco_rle.to_xyxy(rle) == ((x, y, x + width, y + height) if mask.any() else (0, 0, 0, 0))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=30))
def test_strings_round_trip_any_counts(counts):
    assert counts_of(coco_rle.counts_to_string(counts)) == counts


@settings(max_examples=40)
@given(hypothesis_numpy.arrays(np.bool_, st.tuples(st.integers(1, 30), st.integers(1, 30))))
def test_polygons_give_the_mask_back_to_opencv_and_pycocotools(mask):
    (rle,) = coco_rle.encode(mask)
    filled = np.zeros(mask.shape, np.uint8)
    for outline in coco_rle.polygons(rle):
        assert outline.dtype == np.float32
        cv2.fillPoly(filled, [outline.astype(np.int32)], 1)
    outside = 1 - np.pad(mask, 1).astype(np.uint8)
    _, regions = cv2.connectedComponents(outside, connectivity=4)
    holes = (regions != regions[0, 0])[1:-1, 1:-1] & ~mask
    np.testing.assert_array_equal(filled > 0, mask | holes)
    lines = [line.ravel().tolist() for line in coco_rle.polygons(rle, along="edges")]
    found = pycoco_mask.merge(pycoco_mask.frPyObjects(lines, *mask.shape)) if lines else rle
    np.testing.assert_array_equal(pycoco_mask.decode(found), mask | holes)


def test_parts_within_holes_and_single_pixels_have_outlines():
    mask = np.zeros((20, 20), np.uint8)
    cv2.rectangle(mask, (2, 2), (17, 17), 1, 2)
    mask[9:11, 9:11] = 1
    assert len(coco_rle.polygons(coco_rle.encode(mask)[0])) == 2  # the hole has none
    pixels = np.zeros((5, 6), bool)
    pixels[1, 4] = pixels[4, 0] = True
    (rle,) = coco_rle.encode(pixels)
    assert sorted(outline.tolist() for outline in coco_rle.polygons(rle)) == [[[0, 4]] * 3, [[4, 1]] * 3]
    for tolerance in (0, 0.5, 1e9, 1e300):  # three points stay
        edges = coco_rle.polygons(rle, tolerance=tolerance, along="edges")
        assert min(map(cv2.contourArea, edges)) > 0


def test_simplified_outlines_have_few_points_and_are_off_by_no_more_than_the_tolerance():
    mask = np.zeros((300, 400), np.uint8)
    cv2.ellipse(mask, (200, 150), (150, 90), 20, 0, 360, 1, -1)
    cv2.circle(mask, (200, 150), 40, 0, -1)
    (rle,) = coco_rle.encode(mask)
    (exact,) = coco_rle.polygons(rle, along="edges")
    (line,) = coco_rle.polygons(rle, tolerance=1.5, along="edges")
    assert (len(exact) > 300, len(line) < 40) == (True, True)
    assert max(abs(cv2.pointPolygonTest(line, point.tolist(), measureDist=True)) for point in exact) <= 1.5


ONE = {"size": [1, 1], "counts": b"1"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coco_rle.encode(np.zeros((4, 4))), r"masks must be bool or uint8 .*, got float64 \[4, 4\]"),
        (lambda: coco_rle.encode(np.zeros(4, bool)), r"masks must be .* got bool \[4\]"),
        (lambda: coco_rle.area({"size": [4, 4], "counts": b"11"}), r"counts must sum to 4 × 4 = 16, got 2"),
        (lambda: coco_rle.polygons(ONE, tolerance=-1), r"tolerance must be a number of .* got -1"),
        (lambda: coco_rle.polygons(ONE, tolerance=np.nan), "tolerance must be .* got nan"),
        (lambda: coco_rle.polygons(ONE, along="no"), "along must be one of"),
        (lambda: coco_rle.counts_to_string([3, -1]), r"counts must be run lengths in 0\.\.2\*\*32-1, got \[3, -1\]"),
    ],
)
def test_malformed_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


@settings(max_examples=40)
@given(hypothesis_numpy.arrays(np.bool_, st.tuples(st.just(2), st.integers(0, 9), st.integers(0, 9))))
def test_iou_is_that_of_the_dense_masks(masks):
    union = (masks[0] | masks[1]).sum()
    expected = (masks[0] & masks[1]).sum() / union if union else 1.0
    assert coco_rle.iou(*coco_rle.encode(masks)) == pytest.approx(expected, abs=0)
    square = coco_rle.encode(np.ones((99, 99), bool))[0]
    with pytest.raises(InputError, match=r"other must have the size of rle, \[\d, \d\], got \[99, 99\]"):
        coco_rle.iou(coco_rle.encode(masks)[0], square)


def test_a_size_may_be_an_array():
    rle = {"size": np.array([2, 2]), "counts": b"13"}
    np.testing.assert_array_equal(coco_rle.decode(rle), coco_rle.decode({**rle, "size": [2, 2]}))


def test_masks_are_read_at_once_and_united():
    masks = np.random.default_rng(1).random((3, 7, 5)) < 0.2
    masks[2] = False
    rles = coco_rle.encode(masks)
    runs = coco_rle.to_runs(rles, (7, 5))
    np.testing.assert_array_equal(runs.unite(), masks.any(axis=0))
    inside = [np.diff(runs.spans[first:last]).sum() for first, last in zip(runs.firsts, runs.firsts[1:], strict=False)]
    assert inside == masks.sum(axis=(1, 2)).tolist()
    assert not coco_rle.to_runs([], (7, 5)).unite().any()
    with pytest.raises(InputError, match=r"^rle must have the size \[5, 7\], got \[7, 5\]\.$"):
        coco_rle.to_runs(rles, (5, 7))
