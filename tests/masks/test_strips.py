"""Masks as strips, against dense masks."""

from dataclasses import replace

import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.masks import coco_rle
from maskjet.masks.stray_pixels import count_pieces
from maskjet.masks.strips import count_inside, count_shared, cut_boxes, cut_masks, move_mask

SIZE = (19, 23)


def found(masks):
    rle = coco_rle.encode(masks)
    return Detections(
        image_size=masks.shape[1:],
        xyxy=np.array([coco_rle.to_xyxy(one) for one in rle], np.float32).reshape(-1, 4),
        confidence=np.full(len(rle), 0.9, np.float32),
        class_id=np.zeros(len(rle), np.int32),
        rle=rle,
    )


@pytest.fixture(scope="module")
def masks():
    """Random pixels, full columns whose runs touch, all, nothing, the corners."""
    masks = np.random.default_rng(0).random((8, *SIZE)) < np.linspace(0.05, 0.95, 8)[:, None, None]
    masks[4], masks[5], masks[6], masks[7] = 0, 1, 0, 0
    masks[6, :, 3:6] = True
    masks[7, [0, 0, -1, -1], [0, -1, 0, -1]] = True
    return masks


def cut_found(given):
    return cut_boxes(given.xyxy, given.image_size) if given.rle is None else cut_masks(given.rle, given.image_size)


def shifted(masks, moves):
    """Each mask moved, in a margin as large as the image."""
    height, width = SIZE
    wide = np.pad(masks, ((0, 0), (height, height), (width, width)))
    return np.array([np.roll(mask, (dy, dx), (0, 1)) for mask, (dx, dy) in zip(wide, moves, strict=True)])


def test_they_are_the_masks(masks):
    strips = cut_found(found(masks))
    spans = coco_rle.to_runs(coco_rle.encode(masks), SIZE).spans
    assert count_pieces(spans, SIZE[0]) == ((spans[:, 1] - 1) // SIZE[0] - spans[:, 0] // SIZE[0] + 1).sum()
    for i, mask in enumerate(masks):
        again = np.zeros(SIZE, bool)
        for x, top, bottom in strips.strips[strips.firsts[i] : strips.firsts[i + 1]]:
            assert bottom > top
            assert not again[top:bottom, x].any()
            again[top:bottom, x] = True
        np.testing.assert_array_equal(again, mask)
        assert (strips.areas[i], tuple(strips.boxes[i])) == (mask.sum(), coco_rle.to_xyxy(coco_rle.encode(mask)[0]))


def test_shared_pixels_and_those_within_the_image(masks):
    moves = np.random.default_rng(1).integers(-12, 13, (len(masks), 2))
    moves[:2] = 0
    strips = cut_found(found(masks))
    moved, still = shifted(masks, moves), shifted(masks, np.zeros_like(moves))
    expected = (moved[:, None] & still).sum((2, 3))
    np.testing.assert_array_equal(count_shared(strips, moves, strips), expected)
    within = moved[:, SIZE[0] : -SIZE[0], SIZE[1] : -SIZE[1]].sum((1, 2))
    np.testing.assert_array_equal(count_inside(strips, moves, SIZE), within)
    assert expected.any()
    assert (within < masks.sum((1, 2))).any()


def test_boxes_stand_for_masks_that_are_not_there():
    boxes = np.array(
        [[1.2, 2, 4, 5.5], [-3, -3, np.inf, 40], [5, 5, 5, 9], [np.nan, 0, 2, 2], [3, 9, 8, 1]], np.float32
    )
    given = replace(found(np.zeros((5, *SIZE), bool)), xyxy=np.array(boxes, np.float32), rle=None)
    strips = cut_found(given)
    assert strips.areas.tolist() == [3 * 4, SIZE[0] * SIZE[1], 0, 4, 0]
    masks = np.zeros((5, *SIZE), bool)
    masks[0, 2:6, 1:4] = masks[1] = masks[3, :2, :2] = True
    for i in (0, 1, 3):
        lines = strips.strips[strips.firsts[i] : strips.firsts[i + 1]]
        np.testing.assert_array_equal(lines, cut_found(found(masks[i : i + 1])).strips)


@pytest.mark.parametrize("target", [(5, 4, 12, 11), (-3, -2, 4, 5), (18, 15, 25, 22), (2, 3, 16, 10), (3, 2, 13.5, 9)])
def test_a_mask_moves_and_grows_as_its_box_does(target):
    """Each pixel is that of the mask whose middle is nearest, in the order of columns and then of strips."""
    box, mask = (5, 4, 12, 11), np.zeros(SIZE, bool)
    mask[4:11, 5:12] = np.random.default_rng(2).random((7, 7)) < 0.8
    made = coco_rle.decode(move_mask(coco_rle.encode(mask)[0], np.array(box, float), np.array(target, float)))
    (left, top, right, bottom), expected = target, np.zeros(SIZE, bool)
    for y, x in np.ndindex(SIZE):
        from_x, from_y = 5 + (x + 0.5 - left) * 7 / (right - left), 4 + (y + 0.5 - top) * 7 / (bottom - top)
        if 5 <= from_x < 12 and 4 <= from_y < 11:
            expected[y, x] = mask[int(from_y), int(from_x)]
    assert expected.any()
    assert np.count_nonzero(made != expected) <= (0 if right - left == 7 else 0.2 * expected.sum())


def test_a_mask_that_leaves_the_image_is_empty(masks):
    box, away = np.array([0.0, 0, 23, 19]), np.array([40.0, 0, 63, 19])
    for rle in coco_rle.encode(masks):
        assert coco_rle.area(move_mask(rle, box, away)) == 0
        assert move_mask(rle, box, box) == rle
