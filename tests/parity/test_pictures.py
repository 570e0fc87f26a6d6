"""Pictures of the gate's page: what they show, and that they keep within their bytes."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.parity import pictures
from maskjet.parity.check import ChangedImage, check
from maskjet.parity.pair import compare
from maskjet.parity.pictures import (
    ONLY_ACTUAL,
    ONLY_EXPECTED,
    PICTURES_BYTES,
    DifferingImage,
    draw_close_ups,
    open_worst,
    shrink_to,
)
from tests.parity.records import FAULTS, IMAGES, STREETS, detections


def read(data):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


@pytest.fixture
def draw(make):
    def draw(*faults):
        one, two = make(), make("two", list(faults))
        report = check(one, two)
        worst = [(each, one.images[each.number], two.images[each.number]) for each in report.worst]
        images = (IMAGES[each.number][1] for each in report.worst)
        return draw_close_ups(open_worst(worst, images), len(worst))

    return draw


def differing(name, image, one, other):
    return DifferingImage(ChangedImage(0, name, compare(one, other)[1]), image, one, other)


def near(picture, colour):
    """Pixels of about this colour: WebP is lossy, and halves the resolution of colours."""
    return (abs(picture.astype(int) - colour) < 60).all(-1)


def test_a_lost_detection_is_marked_and_enlarged(draw):
    (worst,) = draw(FAULTS["dropped"])
    assert (worst.name, worst.more) == ("street 5", 0)
    (close_up,) = worst.close_ups
    assert (close_up.number, close_up.detection) == (1, "car 0.50 at (100, 72) to (150, 94)")
    assert [difference.kind for difference in close_up.differences] == ["dropped"]
    overview = read(worst.overview)
    assert overview.shape == (10 * 96, 10 * 160, 3)
    red = near(overview, ONLY_EXPECTED)
    assert red[740:920, 1020:1480].mean() > 0.95
    assert red[:600].mean() < 0.01
    assert near(overview, ONLY_ACTUAL).mean() < 0.01
    picture = read(close_up.picture)
    assert picture.shape == (300, 3 * 400 + 2 * 8, 3)
    expected, actual, difference = (picture[:, start : start + 400] for start in (0, 408, 816))
    assert 0.2 < near(difference, ONLY_EXPECTED).mean() < 0.6  # the mask is as wide as two thirds of the close-up
    assert near(expected, ONLY_EXPECTED).mean() > 0.01  # outlined
    assert near(actual, ONLY_ACTUAL).mean() < 0.01  # nothing there


def test_one_pixel_is_shown(draw):
    (worst,) = draw(FAULTS["mask changed"])
    (close_up,) = worst.close_ups
    difference = read(close_up.picture)[:, 816:]
    assert 10 < near(difference, ONLY_EXPECTED).sum() < 100  # a square of 5 x 5, blurred by WebP


def test_a_moved_box_is_drawn_where_it_was_and_is():
    one = detections()
    box = Detections(one.image_size, one.xyxy + np.float32([6, 0, 6, 0]), one.confidence, one.class_id, one.rle)
    found = differing("boxes", STREETS.draw(0), one, box)
    bare = differing("boxes", STREETS.draw(0), replace(one, rle=None), replace(box, rle=None))
    for changed in (found, bare):
        (worst,) = draw_close_ups(iter([changed]), 1)
        picture = read(worst.close_ups[0].picture)
        for colour in (ONLY_EXPECTED, ONLY_ACTUAL):
            assert 100 < near(picture[:, 816:], colour).sum() < 5000  # thin lines, as the masks are the same
    assert near(picture[:, :400], ONLY_EXPECTED).any()
    assert near(picture[:, 408:808], ONLY_ACTUAL).any()


def crowd(count, flipped, size_hw=(96, 160)):
    places = np.arange(count)
    left, top = places % 20 * 8, places // 20 * 8
    boxes = np.stack([left, top, left + 6, top + 6], axis=1)
    return detections(boxes, [0] * count, [0.5] * count, flipped, size_hw=size_hw)


def test_a_crowd_is_cut():
    one, two = crowd(40, ()), crowd(40, range(30))
    found = differing("a crowd", np.zeros((96, 160, 3), np.uint8), one, two)
    (worst,) = draw_close_ups(iter([found]), 1)
    assert [each.number for each in worst.close_ups] == [*range(1, 13)]
    assert worst.more == 18
    assert [each.picture is not None for each in worst.close_ups] == [True] * 6 + [False] * 6
    many = draw_close_ups(iter([found] * 2), 10)
    assert {sum(each.picture is not None for each in worst.close_ups) for worst in many} == {3}


def noise(size_hw, seed):
    """An image that compresses worst, with six masks of noise that all changed."""
    random = np.random.default_rng(seed)
    height, width = size_hw
    boxes = np.array([[n * width / 6, 0, (n + 1) * width / 6, height] for n in range(6)], np.float32)
    sides = []
    for _ in range(2):
        masks = np.zeros((6, *size_hw), np.uint8)
        for mask, (left, _, right, _) in zip(masks, boxes.astype(int), strict=True):
            mask[:, left:right] = random.integers(2, size=(height, right - left), dtype=np.uint8)
        sides.append(
            Detections(size_hw, boxes, np.full(6, 0.5, np.float32), np.zeros(6, np.int32), coco_rle.encode(masks))
        )
    image = random.integers(256, size=(*size_hw, 3), dtype=np.uint8)
    return differing(f"noise {seed}", image, *sides)


def test_noise_keeps_the_bytes():
    (worst,) = draw_close_ups(iter([noise((40, 700), 1)]), 1)
    drawn = [worst.overview, *(each.picture for each in worst.close_ups if each.picture is not None)]
    assert len(drawn) == 7
    assert sum(map(len, drawn)) <= PICTURES_BYTES
    assert min(max(read(data).shape) for data in drawn) > 100


def test_shrinking_ends():
    random = np.random.default_rng(0)
    picture = random.integers(256, size=(300, 500, 3), dtype=np.uint8)
    for most in (20_000, 2_000, 400):
        assert len(shrink_to(picture, most)) <= most
    assert max(read(shrink_to(picture, 1)).shape) == 16  # as small as it gets


@pytest.mark.parametrize("size_hw", [(1, 900), (900, 1), (4, 4), (900, 900)])
@pytest.mark.parametrize("box", [(0, 0, 1, 900), (-900, 0, 1800, 1), (-5, -5, -1, -1), (899, 0, 900, 1), (7, 0, 7, 0)])
def test_any_box_of_any_image_can_be_enlarged(box, size_hw):
    region = pictures._surround(box, size_hw)
    image = np.full((*size_hw, 3), 200, np.uint8)
    panel = pictures._scale_region(image, region, outside=(0, 0, 0))
    assert panel.shape == (300, 400, 3)
    assert panel.any()  # some of the image is in it
    left, top, width, height = region
    assert (left >= 0 and left + width <= size_hw[1]) or width > size_hw[1]
    assert (top >= 0 and top + height <= size_hw[0]) or height > size_hw[0]


def test_other_images_are_refused(make):
    one, two = make(), make("two", [FAULTS["dropped"]])
    (changed,) = check(one, two).worst
    with pytest.raises(InputError, match="images must be those of the records, 'street 5' has other pixels"):
        list(open_worst([(changed, one.images[0], two.images[0])], [IMAGES[1][1]]))
