"""Pictures of the gate's page: what they show."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.outputs.lines import digest
from maskjet.parity import pictures
from maskjet.parity.check import ChangedImage, check
from maskjet.parity.pair import compare
from maskjet.parity.pictures import ONLY_ACTUAL, ONLY_EXPECTED, draw_worst
from maskjet.parity.record import ImageRecord
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
        return draw_worst(worst, images)

    return draw


def draw_one(image, one, other):
    sides = (ImageRecord(0, "drawn", digest(image), each) for each in (one, other))
    (worst,) = draw_worst([(ChangedImage(0, "drawn", compare(one, other)[1]), *sides)], [image])
    return worst


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
    assert overview.shape == (8 * 96, 8 * 160, 3)
    red = near(overview, ONLY_EXPECTED)
    assert red[592:736, 816:1184].mean() > 0.9
    assert red[:480].mean() < 0.01
    assert near(overview, ONLY_ACTUAL).mean() < 0.01
    picture = read(close_up.picture)
    assert picture.shape[1] == 3 * 400 + 2 * 8
    expected, actual, difference = (picture[:, start : start + 400] for start in (0, 408, 816))
    assert 0.2 < near(difference, ONLY_EXPECTED).mean() < 0.6  # the mask is as wide as two thirds of the close-up
    assert near(expected, ONLY_EXPECTED).mean() > 0.01  # outlined
    assert near(actual, ONLY_EXPECTED).mean() < 0.01  # nothing there


def test_one_pixel_is_shown(draw):
    (worst,) = draw(FAULTS["mask changed"])
    (close_up,) = worst.close_ups
    difference = read(close_up.picture)[:, 816:]
    assert 20 < near(difference, ONLY_EXPECTED).sum() < 100  # a square of 7 x 7, blurred by WebP


def test_a_moved_box_is_drawn_where_it_was_and_is():
    one = detections()
    box = Detections(one.image_size, one.xyxy + np.float32([6, 0, 6, 0]), one.confidence, one.class_id, one.rle)
    for sides in ((one, box), (replace(one, rle=None), replace(box, rle=None))):
        picture = read(draw_one(STREETS.draw(0), *sides).close_ups[0].picture)
        for colour in (ONLY_EXPECTED, ONLY_ACTUAL):
            assert 100 < near(picture[:, 816:], colour).sum() < 9000  # thin lines, as the masks are the same
    assert near(picture[:, :400], ONLY_EXPECTED).any()
    assert near(picture[:, 408:808], ONLY_ACTUAL).any()


def crowd(count, flipped, size_hw=(96, 160)):
    places = np.arange(count)
    left, top = places % 20 * 8, places // 20 * 8
    boxes = np.stack([left, top, left + 6, top + 6], axis=1)
    return detections(boxes, [0] * count, [0.5] * count, flipped, size_hw=size_hw)


def test_a_crowd_is_cut():
    one, two = crowd(40, ()), crowd(40, range(30))
    worst = draw_one(np.zeros((96, 160, 3), np.uint8), one, two)
    assert [each.number for each in worst.close_ups] == [*range(1, 13)]
    assert worst.more == 18
    assert [each.picture is not None for each in worst.close_ups] == [True] * 3 + [False] * 9


@pytest.mark.parametrize("size_hw", [(1, 900), (900, 1), (4, 4), (900, 900)])
@pytest.mark.parametrize("box", [(0, 0, 1, 900), (-900, 0, 1800, 1), (-5, -5, -1, -1), (899, 0, 900, 1), (7, 0, 7, 0)])
def test_any_box_of_any_image_can_be_enlarged(box, size_hw):
    panel = np.full((*size_hw, 3), 200, np.uint8)
    picture = read(pictures._enlarge([panel] * 3, box))
    assert max(picture.shape) <= 3 * 400 + 2 * 8
    assert (picture > 150).any()  # some of the image is in it


def test_other_images_are_refused(make):
    one, two = make(), make("two", [FAULTS["dropped"]])
    (changed,) = check(one, two).worst
    with pytest.raises(InputError, match="images must be those of the records, 'street 5' has other pixels"):
        draw_worst([(changed, one.images[0], two.images[0])], [IMAGES[1][1]])
