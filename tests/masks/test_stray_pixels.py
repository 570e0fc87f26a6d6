"""Pixels of masks that are kept, compared with dense masks."""

import math

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from tests.detections.test_detections import some_detections

NAN, INF = math.nan, math.inf
AWKWARD = [  # height, width, mask by rows and columns
    (1, 1, lambda y, x: y + x < 0),
    (1, 1, lambda y, x: y + x >= 0),
    (5, 7, lambda y, x: y + x < 0),
    (5, 7, lambda y, x: y + x >= 0),
    (9, 11, lambda y, x: (y == 4) & (x == 10)),
    (40, 33, lambda y, x: (y + x) % 2 == 0),  # touches at corners alone
    (40, 33, lambda y, x: (y % 2 == 0) & (x % 2 == 0)),
    (6, 8, lambda y, x: (x < 2) | ((x == 4) & (y == 0)) | ((x == 6) & (y < 4))),
    (6, 2, lambda y, x: ((x == 0) & (y == 5)) | ((x == 1) & (y == 0))),  # one run of two parts
    (9, 9, lambda y, x: np.maximum(abs(y - 4), abs(x - 4)) % 4 == 0),  # a ring around a pixel
    (7, 9, lambda y, x: (y % 2 == 0) | ((x == 0) & (y < 3)) | ((x == 8) & (y > 3))),  # a snake
    (0, 4, lambda y, x: y + x < 0),
]


def detections(masks, xyxy, rle=None):
    count = len(masks)
    confidence, class_id = np.ones(count, np.float32), np.zeros(count, np.int32)
    boxes = np.asarray(xyxy, np.float32).reshape(-1, 4)
    return Detections(masks.shape[1:], boxes, confidence, class_id, rle or coco_rle.encode(masks))


def inside_box(mask, box):
    """The pixels of a dense mask that its box touches."""
    x1, y1, x2, y2 = box.tolist()
    if any(map(math.isnan, (x1, y1, x2, y2))):
        return mask
    y, x = (np.arange(side) for side in mask.shape)
    rows = (y >= math.floor(max(min(y1, y2), -9))) & (y < math.ceil(min(max(y1, y2), 9999)))
    columns = (x >= math.floor(max(min(x1, x2), -9))) & (x < math.ceil(min(max(x1, x2), 9999)))
    return mask & rows[:, None] & columns


def check(found):
    """Compare with the dense masks, byte for byte in their encoding."""
    dense, given = found.masks(), [dict(rle) for rle in found.rle]
    in_boxes = [inside_box(mask, box) for mask, box in zip(dense, found.xyxy, strict=True)]
    for name, expected in {"raw": dense, "box": in_boxes}.items():
        kept = found.keep_mask_pixels(name)
        assert kept.rle == [coco_rle.encode(mask)[0] for mask in expected]
        assert kept.area.tolist() == [int(mask.sum()) for mask in expected]
        np.testing.assert_array_equal(kept.xyxy, found.xyxy)
    assert found.rle == given


@pytest.mark.parametrize(("height", "width", "inside"), AWKWARD)
def test_awkward_masks_and_boxes_are_as_dense_ones(height, width, inside):
    mask = np.asarray(inside(*np.mgrid[:height, :width]))
    boxes = [
        (0, 0, width, height),
        (0.5, 0.5, 1.2, 1.2),
        (1, 1, 1, 1),  # without area, on a pixel's edge
        (width - 1, height - 1, width + 9, height + 9),
        (width + 1, height + 1, width + 2, height + 2),  # outside the image
        (-3, -3, -1, -1),
        (5, 4, 0, 1),  # corners swapped
        (-INF, 1, INF, 3),
        (NAN, 0, 1, 1),  # no box: all pixels stay
    ]
    check(detections(np.stack([mask] * len(boxes)), boxes))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 24), st.integers(1, 24))
def test_random_masks_are_as_dense_ones(seed, height, width):
    random = np.random.default_rng(seed)
    masks = random.random((4, height, width)) < random.random((4, 1, 1))
    check(detections(masks, random.uniform(-4, 28, (4, 4))))


def test_ragged_masks_of_a_video_are_as_dense_ones():
    random = np.random.default_rng(0)
    logits = random.normal(size=(33, 24, 24)).astype(np.float32)
    masks = np.stack([cv2.resize(each, (1280, 720)) > 1.2 for each in logits])
    masks[0] = (np.indices((720, 1280)) // 8).sum(axis=0) % 2 == 0
    check(detections(masks, np.sort(random.uniform(0, 1, (33, 2, 2)), axis=1) * (1280, 720)))


def test_runs_of_no_pixels_and_other_forms_of_counts_are_read():
    mask = np.zeros((4, 3), bool)
    mask[1:, 0] = mask[:2, 1] = True
    counts = [1, 2, 0, 1, 0, 2, 6, 0]  # one run in four
    assert coco_rle.decode({"size": [4, 3], "counts": counts}).tolist() == mask.tolist()
    rles = [{"size": [4, 3], "counts": form} for form in (counts, coco_rle.counts_to_string(counts).decode())]
    found = detections(np.stack([mask, mask]), [(0, 0, 3, 4)] * 2, rles).keep_mask_pixels("box")
    assert found.rle == coco_rle.encode(np.stack([mask, mask]))


def test_the_same_detections_where_nothing_is_to_be_dropped():
    found = some_detections(3)
    assert found.keep_mask_pixels("raw") is found
    without = some_detections(2, with_masks=False)
    assert without.keep_mask_pixels("box") is without
    assert found[:0].keep_mask_pixels("box").rle == []


@pytest.mark.parametrize("wrong", ["boxes", "largest", None, ["box"], "", True])
def test_other_choices_are_named(wrong):
    with pytest.raises(InputError, match=r"^mask_pixels must be one of .*, got "):
        some_detections(1).keep_mask_pixels(wrong)


def test_memory_is_bounded_before_it_is_taken():
    def full(*size):
        rle = {"size": [*size], "counts": coco_rle.counts_to_string([0, size[0] * size[1]])}
        return Detections(size, np.zeros((1, 4), np.float32), np.ones(1, np.float32), np.zeros(1, np.int32), [rle])

    with pytest.raises(InputError, match=r"^keep_mask_pixels\(\) needs .* raise maskjet.limits.masks_bytes"):
        full(1, 2**28).keep_mask_pixels("box")
    assert full(0, 2**31 - 1).keep_mask_pixels("box").area.tolist() == [0]  # takes none
