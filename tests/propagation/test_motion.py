"""Motion of instances: points of masks, similarities, and masks moved by them, against plain definitions."""

import cv2
import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.masks import coco_rle
from maskjet.propagation.motion import POINTS, choose_points, fit, follow
from maskjet.propagation.moving import Moving, Part, between, move

SIZE_HW = (90, 160)


def blob(random, size_hw=SIZE_HW):
    """A mask of a few ellipses, perhaps cut off by the image."""
    mask = np.zeros(size_hw, np.uint8)
    for _ in range(3):
        centre = tuple(int(v) for v in random.integers(0, (size_hw[1], size_hw[0])))
        cv2.ellipse(mask, centre, tuple(int(v) for v in random.integers(3, 25, 2)), 30, 0, 360, 1, -1)
    return mask


def found_of(masks, confidence=None, class_id=None):
    rles = coco_rle.encode(np.stack(masks))
    boxes = np.array([coco_rle.to_xyxy(rle) for rle in rles], np.float32).reshape(-1, 4)
    confidence = np.linspace(0.9, 0.6, len(rles)) if confidence is None else confidence
    return Detections(
        masks[0].shape,
        boxes,
        np.asarray(confidence, np.float32),
        np.asarray(class_id or [0] * len(rles), np.int32),
        rles,
        {0: "car", 1: "bus"},
    )


def dense(mask, turn, offset):
    """A mask moved by a similarity, by its definition: each pixel blends the four around where it came from."""
    height, width = mask.shape
    y, x = np.mgrid[:height, :width]
    at = (x + 1j * y - offset) / turn
    i, j = np.floor(at.real).astype(int), np.floor(at.imag).astype(int)
    across, down = at.real - i, at.imag - j
    value = np.zeros(mask.shape)
    for dj, di, weight in (
        (0, 0, (1 - down) * (1 - across)),
        (0, 1, (1 - down) * across),
        (1, 0, down * (1 - across)),
        (1, 1, down * across),
    ):
        is_inside = (i + di >= 0) & (i + di < width) & (j + dj >= 0) & (j + dj < height)
        value += weight * np.where(is_inside, mask[(j + dj).clip(0, height - 1), (i + di).clip(0, width - 1)], 0)
    return value


def moved_mask(mask, turn, offset):
    moving = Moving(found_of([mask]), np.zeros((9, 16), np.uint8))
    string = moving.mask(0, np.array([turn, offset]))
    return coco_rle.decode({"size": [*mask.shape], "counts": string}) if string else np.zeros(mask.shape, bool)


@pytest.mark.parametrize("seed", range(6))
def test_a_moved_mask_is_that_of_its_definition(seed):
    random = np.random.default_rng(seed)
    mask = np.zeros(SIZE_HW, np.uint8)
    mask[20:70, 30:130] = blob(random, (50, 100))  # the image cuts none off
    turn = complex(random.uniform(0.8, 1.3), random.uniform(-0.2, 0.2))
    offset = complex(*random.uniform(-40, 40, 2))
    if seed == 5:  # upside down
        turn, offset = -turn, offset + complex(*SIZE_HW[::-1])
    expected = dense(mask, turn, offset)
    is_sure = np.abs(expected - 0.5) > 1e-9
    assert is_sure.mean() > 0.99
    np.testing.assert_array_equal(moved_mask(mask, turn, offset)[is_sure], expected[is_sure] > 0.5)


@pytest.mark.parametrize("shift", [0, 3 + 0j, -5j, 7 - 2j])
def test_whole_pixels_move_exactly(shift):
    mask = np.zeros(SIZE_HW, np.uint8)
    mask[40:60, 50:90] = blob(np.random.default_rng(3), (20, 40))
    expected = np.roll(mask, (int(complex(shift).imag), int(complex(shift).real)), (0, 1))
    np.testing.assert_array_equal(moved_mask(mask, 1, shift), expected > 0)


def test_what_the_image_cut_off_goes_on_behind_its_edge():
    mask = np.zeros(SIZE_HW, np.uint8)
    mask[30:50, :40] = 1
    moved = moved_mask(mask, 1, 15)
    assert moved[30:50, :55].all()
    assert moved.sum() == 20 * 55
    whole = np.ones(SIZE_HW, np.uint8)
    assert moved_mask(whole, 1, 30 + 20j).all()


def test_masks_that_leave_the_image_are_gone():
    mask = np.zeros(SIZE_HW, np.uint8)
    mask[30:45, 20:40] = 1
    assert not moved_mask(mask, 1, 400).any()
    assert moved_mask(mask, 1, -37).sum() == 15 * 3
    assert not moved_mask(mask, 1, -39).any()  # fewer than 16 pixels are left
    mask[:] = 0
    mask[10, 10] = 1
    assert moved_mask(mask, 1, 4).sum() == 1


def test_points_are_spread_over_the_mask():
    random = np.random.default_rng(5)
    single, empty = np.zeros(SIZE_HW, np.uint8), np.zeros(SIZE_HW, np.uint8)
    single[7, 9] = 1
    masks = [*(blob(random) for _ in range(5)), np.ones(SIZE_HW, np.uint8), single, empty]
    points = choose_points(coco_rle.to_runs(coco_rle.encode(np.stack(masks)), SIZE_HW))
    for mask, own in zip(masks[:-1], points, strict=False):
        x, y = own.real.astype(int), own.imag.astype(int)
        assert mask[y, x].all()
        columns = np.flatnonzero(mask.T)  # in column-major order
        expected = columns[(2 * np.arange(POINTS) + 1) * len(columns) // (2 * POINTS)]
        np.testing.assert_array_equal(x * SIZE_HW[0] + y, expected)
    assert np.isnan(points[-1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_similarity_is_found_among_wrong_points(seed):
    random = np.random.default_rng(seed)
    before = (random.uniform(0, 400, (2, POINTS)) + 1j * random.uniform(0, 400, (2, POINTS))).astype(np.complex128)
    moves = np.array([[1.05 + 0.03j, 6 - 3j], [0.97 - 0.02j, -9 + 1j]])
    after = moves[:, :1] * before + moves[:, 1:]
    after[:, : POINTS // 4] += 60 + 80j  # wrong ones
    is_found = np.ones(before.shape, bool)
    is_found[:, -3:] = False
    after[:, -3:] = np.nan
    fitted = fit(before, after, is_found, 4.0)
    there = fitted[:, :1] * before + fitted[:, 1:]
    expected = moves[:, :1] * before + moves[:, 1:]
    assert np.abs(there - expected).max() < 1.5
    is_found[0, 3:] = False  # too few
    assert fit(before, after, is_found, 4.0)[0].tolist() == [1, 0]


def test_points_follow_the_image():
    random = np.random.default_rng(1)
    texture = cv2.GaussianBlur(random.integers(0, 255, (200, 340)).astype(np.uint8), (0, 0), 2) * 3
    before, after = texture[10:190, 10:330].copy(), texture[7:187, 15:335].copy()  # moved by -5, +3
    points = (random.uniform(200, 1000, (3, POINTS)) + 1j * random.uniform(150, 550, (3, POINTS))).astype(np.complex128)
    there, is_found = follow(before, after, points, 4 + 4j)
    assert is_found.mean() > 0.9
    assert np.abs(np.median(there - points) - (-20 + 12j)) < 0.5
    there, is_found = follow(before, after, points[:0], 4 + 4j)
    assert there.shape == is_found.shape == (0, POINTS)


class Scene:
    """A textured background with textured squares that move by whole pixels."""

    def __init__(self, squares):
        random = np.random.default_rng(0)
        self._background = cv2.GaussianBlur(random.integers(0, 255, (360, 640)).astype(np.uint8), (0, 0), 4)
        self._texture = cv2.GaussianBlur(random.integers(0, 255, (90, 90)).astype(np.uint8), (0, 0), 3) * 2
        self.squares = squares  # left, top, speed, whether it is there by frame

    def grey(self, index):
        image = self._background.copy()
        for mask in self.masks(index).values():
            image[mask > 0] = self._texture.ravel()[: mask.sum()]
        return cv2.resize(image, (320, 180), interpolation=cv2.INTER_AREA)

    def masks(self, index):
        masks = {}
        for number, (left, top, speed, is_there) in enumerate(self.squares):
            if is_there(index):
                masks[number] = np.zeros((360, 640), np.uint8)
                x = left + speed * index
                masks[number][top : top + 90, x : x + 90] = 1
        return masks

    def key(self, index, found=None):
        masks = self.masks(index)
        return Moving(found_of([masks[n] for n in (masks if found is None else found)]), self.grey(index))


def iou(found, i, mask):
    own = coco_rle.decode(found.rle[i])
    return (own & (mask > 0)).sum() / (own | (mask > 0)).sum()


@pytest.mark.parametrize("covers", [False, True])
def test_between_two_frames_masks_follow_the_instances(covers):
    scene = Scene([(100, 40, 4, lambda _: True), (400, 200, -6, lambda _: True)])
    every = between(scene.key(0), [scene.grey(k) for k in range(1, 6)], scene.key(6), covers=covers)
    for index, found in enumerate(every, 1):
        assert found.moved.tolist() == [min(index, 6 - index)] * 2
        np.testing.assert_array_equal(found.confidence, scene.key(0).found.confidence)
        for i, mask in scene.masks(index).items():
            assert iou(found, i, mask) > 0.85
            np.testing.assert_allclose(found.xyxy[i], coco_rle.to_xyxy(coco_rle.encode(mask[None])[0]), atol=8)
            if covers:
                assert found.area[i] >= 0.97 * mask.sum()


def test_what_only_one_frame_has_is_there_while_its_points_are():
    gone = Scene([(100, 40, 2, lambda _: True), (400, 200, 0, lambda k: k < 3)])
    greys = [gone.grey(k) for k in range(1, 6)]
    every = between(gone.key(0), greys, gone.key(6), covers=False)
    assert [len(found) for found in every] == [2, 2, 1, 1, 1]
    assert every[1].moved.tolist() == [2, 2]
    assert [len(found) for found in between(gone.key(0), greys, gone.key(6), covers=True)] == [2] * 5
    come = Scene([(400, 200, 0, lambda k: k > 3)])
    empty = found_of([np.zeros((360, 640), np.uint8)])[:0]
    first = Moving(empty, come.grey(0))
    every = between(first, [come.grey(k) for k in range(1, 6)], come.key(6), covers=False)
    assert [len(found) for found in every] == [0, 0, 0, 1, 1]
    assert every[-1].moved.tolist() == [1]


def test_without_masks_boxes_move():
    scene = Scene([(100, 40, 4, lambda _: True)])
    keys = [scene.key(k) for k in (0, 4)]
    first, second = (
        Moving(Detections(k.found.image_size, k.found.xyxy, k.found.confidence, k.found.class_id), k.grey) for k in keys
    )
    for index, found in enumerate(between(first, [scene.grey(k) for k in (1, 2, 3)], second, covers=True), 1):
        assert found.rle is None
        assert np.abs((found.xyxy[0] + found.xyxy[0, [2, 3, 0, 1]]) / 2 - np.tile([145 + 4 * index, 85], 2)).max() < 6


def test_nothing_moves_to_nothing():
    empty = found_of([np.zeros(SIZE_HW, np.uint8)])[:0]
    key = Moving(empty, np.zeros((180, 320), np.uint8))
    for found in between(key, [key.grey] * 2, key, covers=False):
        assert (len(found), found.rle, found.moved.dtype) == (0, [], np.int64)
    assert len(move([Part(key, key.follow([key.grey] * 2)[-1].moves, np.arange(0), 1)])) == 0
