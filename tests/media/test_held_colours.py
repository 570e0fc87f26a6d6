"""Colours by instance in video: held from frame to frame."""

import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.drawing import Cutout, DrawStyle, Painter, draw
from maskjet.drawing.shades import HeldColours
from maskjet.media.frames import Frame

SIZE = (240, 640)
STYLE = DrawStyle(labels=False, scores=False, masks=False, outlines=False, color_by="instance")
BLACK = np.zeros((*SIZE, 3), np.uint8)


def boxes_at(*centres, sides=(40, 90)):
    """Boxes of one size, float32 [n, 4]."""
    corners = np.array(centres, np.float32).reshape(-1, 2) - np.array(sides, np.float32) / 2
    return np.hstack([corners, corners + np.array(sides, np.float32)])


def found_at(xyxy):
    count = len(xyxy)
    return Detections(SIZE, xyxy, np.ones(count, np.float32), np.zeros(count, np.int32))


def paint(painter, xyxy, *, index=0, time_s=0.0, source="a.mp4", stream=0):
    """The colours of the boxes, as the corners of their frames have them."""
    frame = Frame(index, time_s, BLACK, source, "a", stream=stream)
    shown = painter.paint(frame, found_at(xyxy))
    return [tuple(shown[int(top), int(left)].tolist()) for left, top in xyxy[:, :2].tolist()]


@pytest.mark.parametrize(
    ("lower", "noise", "missed"),
    [
        (0, 0.0, ()),  # the same row: only their motion tells them apart
        (15, 1.0, ()),
        (15, 0.0, (95, 96, 97, 98, 99)),  # the one behind is not found
    ],
)
def test_two_that_cross_slowly_keep_their_colours_whatever_their_order(lower, noise, missed):
    random, held = np.random.default_rng(0), HeldColours()
    first = held.follow(boxes_at((100, 120), (500, 120 + lower)))
    assert (first[0] != first[1]).any()
    for step in range(1, 200):
        xyxy = boxes_at((100 + 2.1 * step, 120), (500 - 2 * step, 120 + lower))
        xyxy += random.normal(0, noise, xyxy.shape).astype(np.float32)
        order = random.permutation(1 if step in missed else 2)
        np.testing.assert_array_equal(held.follow(xyxy[order]), first[order], err_msg=str(step))


def test_a_new_one_takes_a_free_colour_and_leaves_those_of_others():
    held, xyxy, known = HeldColours(), boxes_at(), []
    for count in range(1, 13):
        xyxy = np.vstack([xyxy + 1, boxes_at((45 * count, 100))])
        shown = held.follow(xyxy).tolist()
        assert shown[:-1] == known
        known = shown
        assert len(set(map(tuple, known))) == count


@pytest.mark.parametrize(("missed", "is_held"), [(5, True), (6, False)])
def test_one_that_is_missed_for_some_frames_keeps_its_colour(missed, is_held):
    held, other = HeldColours(), boxes_at((100, 100))
    held.follow(other)
    before = held.follow(np.vstack([other, boxes_at((400, 100), (300, 100))]))
    for _ in range(missed):
        held.follow(other)
    after = held.follow(np.vstack([boxes_at((300, 100)), other]))
    assert (after[1] == before[0]).all()
    assert (after[0] == before[2]).all() == is_held


def test_what_is_no_box_takes_a_colour_and_disturbs_no_other():
    held, xyxy = HeldColours(), boxes_at((100, 100), (300, 100))
    before = held.follow(xyxy)
    broken = np.full((1, 4), np.nan, np.float32)
    endless = np.array([[-np.inf, -np.inf, np.inf, np.inf]], np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(held.follow(np.vstack([broken, endless, xyxy]))[2:], before)
    assert held.follow(xyxy[:0]).shape == (0, 3)


class TestPainter:
    def test_holds_them_by_source_also_in_frames_that_it_skips(self):
        painter, ordered = Painter(STYLE), boxes_at((100, 120), (300, 120))
        aside = np.array([2, 0, 2, 0], np.float32)
        first = paint(painter, ordered)
        assert paint(painter, ordered[::-1]) == first[::-1]
        assert paint(painter, ordered[::-1], stream=1, source="b.mp4") == first  # begins anew
        for step in range(1, 90):
            painter.skip(Frame(step, 0.0, BLACK, "a.mp4", "a"), found_at(ordered + step * aside))
        assert paint(painter, ordered[::-1] + 90 * aside) == first[::-1]
        assert paint(painter, ordered[::-1], source="c.mp4") == first

    def test_images_and_colours_by_class_are_those_of_draw(self):
        some = [boxes_at((100, 120), (300, 120)), boxes_at((310, 120), (120, 120))]
        for style, time_s in ((STYLE, None), (DrawStyle(), 0.0)):
            painter = Painter(style)
            for xyxy in some:
                shown = painter.paint(Frame(0, time_s, BLACK, "a", "a"), found_at(xyxy))
                np.testing.assert_array_equal(shown, draw(BLACK, found_at(xyxy), style))

    def test_a_video_after_an_image_of_a_list_has_its_own(self):
        painter, xyxy = Painter(STYLE), boxes_at((100, 120), (300, 120))
        paint(painter, xyxy, time_s=None, source="list")
        first = paint(painter, xyxy, source="list")
        assert paint(painter, xyxy[::-1], source="list") == first[::-1]

    def test_on_top_of_a_cutout(self):
        painter, xyxy = Painter(Cutout(on_top=STYLE)), boxes_at((100, 120), (300, 120))
        first = paint(painter, xyxy)
        assert paint(painter, xyxy[::-1]) == first[::-1]
