"""Tracks in pictures: ids, colours and ways; and counts of lines and zones."""

from dataclasses import replace

import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.drawing import Cutout, DrawStyle, Painter, Redaction, draw
from maskjet.drawing.labels import arrange_labels
from maskjet.drawing.shades import colour_tracks
from maskjet.drawing.style import measure
from maskjet.sources.counts import Count
from maskjet.sources.frames import Frame

SIZE = (240, 320)
BLACK = np.zeros((*SIZE, 3), np.uint8)
NOTHING = DrawStyle(boxes=False, labels=False, scores=False, masks=False, outlines=False, ids=False, trails=False)


def found_at(*centres, ids):
    middles = np.array(centres, np.float32)
    count = len(middles)
    boxes = np.hstack([middles - 10, middles + 10])
    return Detections(
        *(SIZE, boxes, np.full(count, 0.5, np.float32), np.zeros(count, np.int32), None, {0: "car"}),
        track_id=np.array(ids, np.int64),
    )


def paint(painter, found, index=0, stream=0, source="a.mp4", time_s=0.0, counts=()):
    return painter.paint(Frame(index, time_s, BLACK, source, "a", stream, counts), found)


@pytest.mark.parametrize(
    ("style", "texts"),
    [
        (DrawStyle(), ["car #7 0.50", "car 0.50"]),
        (DrawStyle(scores=False), ["car #7", "car"]),
        (replace(NOTHING, ids=True), ["#7"]),
        (DrawStyle(ids=False), ["car 0.50", "car 0.50"]),
        (DrawStyle(label="{name} {confidence:.0%} #{track}"), ["car 50% #7", "car 50%"]),
        (replace(NOTHING, label="{{{class_id:02d}}} é #{track:03d}"), ["{00} é #007", "{00} é"]),
    ],
)
def test_labels_have_ids_of_confirmed_tracks(style, texts):
    found = found_at((60, 60), (200, 160), ids=[7, -1])
    frames = found.xyxy.astype(np.int64)
    labels = arrange_labels(found, frames, style=style, measures=measure(SIZE, None))
    assert [label.text for label in labels] == texts
    assert (
        draw(BLACK, found, style)
        != draw(BLACK, found, replace(style, label=None, labels=False, scores=False, ids=False))
    ).any()


def test_an_instance_has_its_tracks_colour_wherever_it_is():
    style = replace(NOTHING, boxes=True, color_by="instance")
    shown = draw(BLACK, found_at((60, 60), (200, 160), ids=[3, -1]), style)
    moved = draw(BLACK, found_at((100, 30), (60, 200), ids=[-1, 3]), style)
    grey = colour_tracks(np.array([-1]))[0].tolist()
    assert shown[50, 60].tolist() == moved[190, 60].tolist() != grey
    assert shown[150, 200].tolist() == moved[20, 100].tolist() == grey
    first = colour_tracks(np.arange(40)).astype(int)
    steps = np.abs(np.diff(first, axis=0)).max(axis=1)
    assert steps.min() > 60  # tracks that begin one after another differ


def test_a_trail_is_where_the_track_was_and_each_source_has_its_own():
    painter = Painter(replace(NOTHING, trails=True))
    for step in range(40):
        shown = paint(painter, found_at((20 + 5 * step, 100), (300, 200), ids=[7, -1]), step)
        other = paint(painter, found_at((250, 50), ids=[7]), step, stream=1)
    lit = np.flatnonzero(shown.any(axis=(0, 2)))
    assert lit.min() >= 20 + 5 * 10 - 3  # of the last 30 frames
    assert lit.max() >= 20 + 5 * 39 - 3
    assert set(np.flatnonzero(shown.any(axis=(1, 2)))) <= set(range(107, 114))  # the boxes' bottom edge
    assert np.count_nonzero(other.any(axis=2)) < 30
    assert not paint(painter, found_at((50, 50), ids=[7]), 0, source="b.mp4", time_s=None).any()


def test_a_trail_of_what_is_seldom_seen_is_as_long():
    painter = Painter(replace(NOTHING, trails=True))
    for step in range(0, 41, 10):
        shown = paint(painter, found_at((20 + 5 * step, 100), ids=[7]), step)
        for more in range(1, 10 if step < 40 else 1):
            paint(painter, found_at((250, 50), ids=[8]), step + more)
    assert np.flatnonzero(shown.any(axis=(0, 2))).min() >= 20 + 5 * 20 - 3


def test_trails_are_forgotten_and_survive_a_gap_and_frames_that_are_not_shown():
    painter = Painter(replace(NOTHING, trails=True))
    for step in range(10):
        painter.prepare(Frame(step, 0.0, BLACK, "a.mp4", "a"), found_at((20 + 5 * step, 100), ids=[7]))
    for step in range(10):
        paint(painter, found_at((250, 50), ids=[8]), 10 + step)
    assert np.count_nonzero(paint(painter, found_at((120, 100), ids=[7])).any(axis=(0, 2))) > 95
    for step in range(40):
        paint(painter, found_at((250, 50), ids=[8]), 30 + step)
    assert not paint(painter, found_at((120, 100), ids=[7])).any()


LINE = Count("gate", ((40, 200), (280, 200)), {"car": 2}, {})
ZONE = Count("yard", ((60, 60), (200, 60), (200, 150)), {}, {}, (), {"car": 1})


@pytest.mark.parametrize("style", [NOTHING, Redaction(), Cutout(replace_with="grey")])
def test_lines_and_zones_are_drawn_whatever_the_style(style):
    found = found_at((300, 20), ids=[7])
    plain = paint(Painter(style), found)
    shown = paint(Painter(style), found, counts=[LINE, ZONE])
    changed = (shown != plain).any(axis=2)
    assert changed[200, 60:280].all()
    assert changed[60, 100:200].all()
    assert changed[100:150, 200].all()
    assert changed[196, 160]  # the arrow, to the left
    assert not changed[204, 160]
    np.testing.assert_array_equal(paint(Painter(style), found, counts=[]), plain)


def test_counts_are_written_and_nothing_is_drawn_into_transparent_pictures():
    found, painter = found_at((300, 20), ids=[7]), Painter(NOTHING)
    one = paint(painter, found, counts=[LINE])
    two = paint(painter, found, counts=[replace(LINE, in_by_class={"car": 2, "bus": 1})])
    assert 0 < np.count_nonzero((one != two).any(axis=2)) < 200
    far = replace(LINE, name="x" * 500, points=((-1e6, 1e6), (1e6, -1e6)))
    paint(painter, found, counts=[far, replace(ZONE, points=((1e6, 1e6), (1e6, 1e6), (1e6, 1e6)))])
    clear = Painter(Cutout(replace_with="transparent"))
    np.testing.assert_array_equal(paint(clear, found, counts=[LINE]), paint(clear, found))
