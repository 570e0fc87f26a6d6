"""Lines and zones: counts equal supervision's, ids of -1 count nowhere, stays have their lengths."""

from dataclasses import replace

import numpy as np
import pytest
import supervision

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.sources.source import Frame
from maskjet.tracking import Counting, Line, Zone, parse_counters

SIZE = (120, 160)
NAMES = {0: "car", 1: "bus"}
SQUARE = ((40, 30), (119, 30), (119, 89), (40, 89))


def found_at(boxes, ids, classes=None, *, has_masks=True):
    """Detections, perhaps with masks that fill their boxes."""
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    masks = np.zeros((len(boxes), *SIZE), bool)
    for mask, (x1, y1, x2, y2) in zip(masks, np.rint(boxes).clip(0).astype(int), strict=True):
        mask[y1:y2, x1:x2] = True
    classes = np.zeros(len(boxes), np.int32) if classes is None else np.array(classes, np.int32)
    ids = np.array(ids, np.int64)
    rle = coco_rle.encode(masks) if has_masks else None
    return Detections(SIZE, boxes, np.ones(len(boxes), np.float32), classes, rle, NAMES, ids)


def wandering(seed, count=12, frames=150, *, has_masks=False):
    """Boxes on random walks, also beyond the border; ids of -1, and gaps of a frame."""
    random = np.random.default_rng(seed)
    centres, speeds = random.uniform(0, SIZE[::-1], (count, 2)), random.normal(0, 5, (count, 2))
    sides, ids = random.uniform(2, 25, (count, 2)), np.where(random.random(count) < 0.2, -1, np.arange(count))
    for _ in range(frames):
        speeds = 0.9 * speeds + random.normal(0, 3, (count, 2)) + 0.01 * (np.array(SIZE[::-1]) / 2 - centres)
        centres = centres + speeds
        boxes = np.hstack([centres - sides / 2, centres + sides / 2]).clip(0, (*SIZE[::-1], *SIZE[::-1]))
        seen = random.random(count) < 0.97
        yield found_at(boxes[seen], ids[seen], np.arange(count)[seen] % 2, has_masks=has_masks)


def missed_once(frames):
    """Frames in which no track is missed twice in a row, for which supervision would forget it."""
    missed = set()
    everywhere = {int(each) for found in frames for each in found.track_id}
    for found in frames:
        here = {int(each) for each in found.track_id}
        if missed <= here:
            yield found
            missed = everywhere - here


ANCHORS = {
    "corners": supervision.LineZone.__init__.__defaults__[0],
    "center": (supervision.Position.CENTER,),
    "bottom": (supervision.Position.BOTTOM_CENTER,),
}


@pytest.mark.parametrize("anchor", ANCHORS)
@pytest.mark.parametrize("frames", [1, 3])
def test_lines_count_as_supervisions_do(anchor, frames):
    crossings = 0
    for seed, (start, end) in enumerate([((20, 60), (140, 60)), ((80, 110), (70, 5)), ((10, 10), (150, 100))]):
        ours = Line(start, end, anchor=anchor, frames=frames)
        theirs = supervision.LineZone(
            supervision.Point(*start), supervision.Point(*end), ANCHORS[anchor], minimum_crossing_threshold=frames
        )
        for found in missed_once(list(wandering(seed))):
            into, out = theirs.trigger(found.to_supervision())
            count = ours.update(found)
            named = {
                way: {NAMES[key]: n for key, n in each.items()}
                for way, each in (("in", theirs.in_count_per_class), ("out", theirs.out_count_per_class))
            }
            assert count.as_dict() == named
            assert [(e.track_id, e.direction) for e in count.events] == [
                (found.track_id[i], "in" if into[i] else "out") for i in np.flatnonzero(into | out)
            ]
        crossings += theirs.in_count + theirs.out_count
    assert crossings > 10


@pytest.mark.parametrize("anchor", ANCHORS)
def test_zones_hold_as_many_as_supervisions_do(anchor):
    polygon = np.array([(30, 20), (130, 40), (159, 120), (60, 70), (10, 110)])
    ours = Zone(polygon, anchor=anchor, frames=1)
    theirs = supervision.PolygonZone(polygon, ANCHORS[anchor])
    inside = 0
    for found in wandering(4):
        tracked = found[found.track_id >= 0]
        theirs.trigger(tracked.to_supervision())
        counts = ours.update(found).inside_by_class
        assert sum(counts.values()) == theirs.current_count
        inside += theirs.current_count
    assert inside > 100


@pytest.mark.parametrize("share", [0.25, 0.75, 1.0])
def test_a_share_is_that_of_a_masks_pixels(share):
    polygon = np.zeros(SIZE, bool)
    polygon[30:90, 40:120] = True
    zone = Zone(SQUARE, share=share, frames=1)
    counted = 0
    for found in wandering(5, frames=60, has_masks=True):
        expected = [m[polygon].sum() >= share * m.sum() > 0 for m in found.masks()]
        counts = zone.update(found).inside_by_class
        assert sum(counts.values()) == np.count_nonzero(np.array(expected) & (found.track_id >= 0))
        counted += sum(counts.values())
    assert counted > 50
    with pytest.raises(InputError, match=r"^share must be None for detections without masks"):
        zone.update(replace(found, rle=None))


def at(y, track=7, x=70):
    return found_at([(x, y, x + 20, y + 10)], [track])


def test_a_flicker_on_the_line_counts_once_and_what_is_hidden_as_it_crosses_counts():
    line = Line((0, 60), (160, 60), frames=2)
    for y in (80, 70, 49, 70, 49, 70, 49, 48, 47, 70, 49, 40):
        count = line.update(at(y))
    assert count.as_dict() == {"in": {"car": 1}, "out": {}}
    for _ in range(30):
        line.update(found_at([], []))
    for y in (70, 80):
        count = line.update(at(y))
    assert count.as_dict() == {"in": {"car": 1}, "out": {"car": 1}}
    assert [(event.counter, event.track_id, event.point) for event in count.events] == [("line", 7, (80, 90))]


def test_an_unconfirmed_track_counts_nowhere_and_an_old_one_is_forgotten():
    line, zone = Line((0, 60), (160, 60)), Zone(SQUARE, frames=1)
    for y in (80, 30, 80):
        assert line.update(at(y, -1)).as_dict() == {"in": {}, "out": {}}
        assert not any(zone.update(at(y, -1)).as_dict().values())
    line.update(at(80))
    for _ in range(2500):
        line.update(found_at([], []))
    assert line.update(at(30)).as_dict() == {"in": {}, "out": {}}


def test_stays_are_counted_and_timed():
    zone = Zone(SQUARE, name="yard", frames=1)
    for time_s, y in enumerate((10, 40, 50, 95, 60)):  # in from 1 s to 3 s, and from 4 s on
        count = zone.update(at(y), float(time_s))
        if y == 95:
            assert [(event.direction, event.dwell_s) for event in count.events] == [("out", 1.0)]
    zone.update(Detections.from_dict(found_at([], []).as_dict()), 5.0)  # JSON says of none whether they are tracked
    count = zone.update(at(60), 6.0)
    assert count.as_dict() == {
        "in": {"car": 2},
        "out": {"car": 1},
        "inside": {"car": 1},
        "mean_dwell_s": {"car": 1.5},
        "longest_dwell_s": {"car": 2.0},
    }
    assert str(count) == "yard: in 2 (2 car), out 1 (1 car), inside 1 (1 car)"


def test_a_stay_is_of_the_class_that_came_in():
    zone = Zone(SQUARE, frames=1)
    for time_s, voted in enumerate((0, 1, 1)):
        count = zone.update(replace(at(50), track_class_id=np.array([voted])), float(time_s))
    assert count.as_dict() == {
        "in": {"car": 1},
        "out": {},
        "inside": {"bus": 1},
        "mean_dwell_s": {"car": 2.0},
        "longest_dwell_s": {"car": 2.0},
    }


def test_each_stream_counts_for_itself():
    counting = Counting([Line((0, 60), (160, 60), name="gate")])
    image = np.zeros((*SIZE, 3), np.uint8)
    for index, y in enumerate((80, 30)):
        for stream in range(2):
            frame = counting.update(Frame(index, None, image, "a", "a", stream), at(y if stream else 80))
            assert [each.as_dict()["in"] for each in frame.counts] == [{"car": 1} if stream * index else {}]
    with pytest.raises(InputError, match=r"^counters must have names of their own, got zone, zone"):
        Counting([Zone(SQUARE), Zone(SQUARE)])


def test_counters_are_read_from_texts():
    line, zone = parse_counters(["gate 1=line:0,400,1280,400.5:frames=2", "zone:0,0,9,0,9,9:share=0.5"])
    assert (line.name, line.points) == ("gate 1", ((0, 400), (1280, 400.5)))
    assert (zone.name, zone.points) == ("zone2", ((0, 0), (9, 0), (9, 9)))
    (line,) = parse_counters(["line:0,60,160,60:frames=2"])
    assert [line.update(at(y)).as_dict()["in"] for y in (80, 30, 30)] == [{}, {}, {"car": 1}]
    (zone,) = parse_counters(["zone:0,35,160,35,160,119,0,119:share=0.5:frames=1"])
    assert [zone.update(at(y)).as_dict()["inside"] for y in (29, 31)] == [{}, {"car": 1}]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        *((text, "[NAME=]line:") for text in ("", "line", "line:1,2,3", "line:1,2,3,4,5,6", "circle:1,2,3,4")),
        *((f"line:1,2,3,4:{text}", "[NAME=]line:") for text in ("share=0.5", "frames=x", "colour=red")),
        *((text, "points must be ") for text in ("line:1,2,3,nan", "line:1,2,3,1e999", "zone:1,2,3,4,5,1e9")),
        ("line:1,2,1,2", "end must be another point than start"),
        ("zone:1,2,3,4", "points must be at least three corners"),
        ("zone:1,2,3,4,5,6:share=2", "share must be above 0"),
        ("line:1,2,3,4:anchor=top", "anchor must be "),
        ("line:1,2,3,4:frames=0", "frames must be "),
    ],
)
def test_what_is_wrong_in_a_text_is_named(text, cause):
    with pytest.raises(InputError, match=r"^count must be ") as caught:
        parse_counters([text])
    assert cause in str(caught.value)


def test_a_box_that_is_no_number_is_nowhere():
    zone, line = Zone(SQUARE, frames=1), Line((0, 60), (160, 60))
    for counter in (zone, line):
        counter.update(at(40))
        for value in (np.nan, np.inf, -np.inf):
            count = counter.update(replace(at(40), xyxy=np.full((1, 4), value, np.float32)))
            assert not count.events
            assert not count.out_by_class
