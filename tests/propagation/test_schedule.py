"""Streams of which every N-th frame is detected: which those are, in which order results come, and what is refused."""

import threading
import time

import numpy as np
import pytest

import maskjet
from maskjet.errors import InputError
from maskjet.parity.pair import pair
from maskjet.propagation import schedule
from maskjet.sources.frames import Frame, Source
from maskjet.traffic import Street

COUNT = 11


@pytest.fixture(scope="module")
def model():
    with maskjet.load("demo", device="cpu") as model:
        yield model


class Frames(Source):
    """A source of frames that are in memory, as a video or live."""

    kind = "video"

    def __init__(self, images, *, is_live=False, interval_s=1 / 30, waits_s=0.0):
        super().__init__("frames")
        self.is_live, self.length, self.fps = is_live, len(images), 1 / interval_s
        self._images, self._interval_s, self._waits_s = images, interval_s, waits_s

    def _read(self):
        for index, image in enumerate(self._images):
            time.sleep(self._waits_s)
            yield Frame(index, index * self._interval_s, image, self.name, f"frames#{index}")

    def close(self):
        """Nothing to close."""


@pytest.fixture(scope="module")
def images():
    street = Street(seed=4, size_hw=(360, 640))
    return [street.frame(index).image for index in range(COUNT)]


@pytest.fixture(scope="module")
def every(model, images):
    return [found for _, found in model.stream(Frames(images))]


def run(model, images, options, **about):
    results = list(model.stream(Frames(images, **about), **options))
    assert [frame.index for frame, _ in results] == list(range(len(images)))
    assert all(frame.image is image for (frame, _), image in zip(results, images, strict=True))
    return [found for _, found in results]


def assert_same(found, expected):
    np.testing.assert_array_equal(found.xyxy, expected.xyxy)
    np.testing.assert_array_equal(found.confidence, expected.confidence)
    assert found.rle == expected.rle


@pytest.mark.parametrize(
    ("options", "detected"),
    [
        ({"detect": 4}, {0, 4, 8, 10}),
        ({"detect": 4, "delay": 0}, {0, 4, 8}),
        ({"detect": 64}, {0, 10}),
        ({"detect": 64, "delay": 0}, {0}),
    ],
)
def test_some_frames_are_detected_and_the_others_are_close(options, detected, model, images, every):
    before = model.report()
    found = run(model, images, options)
    assert {index for index, each in enumerate(found) if not each.moved.any()} == detected
    for index in detected:
        assert_same(found[index], every[index])
    overlaps = []
    for each, expected in zip(found, every, strict=True):
        overlaps += [*pair(expected, each).mask_ious]
    assert np.mean(overlaps) > 0.85
    after = model.report()
    assert (after.images - before.images, after.moved - before.moved) == (COUNT, COUNT - len(detected))


def test_one_is_every_frame_as_ever(model, images, every):
    for found, expected in zip(run(model, images, {"detect": 1}), every, strict=True):
        assert found.moved is None
        assert_same(found, expected)


@pytest.mark.parametrize("options", [{"detect": 3}, {"detect": 3, "delay": 0}])
def test_cuts_gaps_and_other_sizes_are_detected(options, model, images):
    def are_detected(frames, **about):
        return [not each.moved.any() for each in run(model, frames, {**options, "detect": 64}, **about)]

    is_delayed = "delay" not in options
    dark = [image // 8 for image in images[:4]]
    assert are_detected(images[:4] + dark) == [True, False, False, is_delayed, True, False, False, is_delayed]
    small = [np.ascontiguousarray(image[::2, ::2]) for image in images[:2]]
    assert are_detected(images[:2] + small)[2]
    assert are_detected(images[:3], interval_s=1.0) == [True] * 3


def test_large_frames_wait_in_bounded_memory(model, images, monkeypatch):
    monkeypatch.setattr(schedule, "_WAITING_BYTES", 2 * images[0].nbytes)
    found = run(model, images, {"detect": 64})
    assert [index for index, each in enumerate(found) if not each.moved.any()] == [0, 3, 6, 9, 10]


@pytest.mark.parametrize("size_hw", [(1, 1), (2, 300), (300, 2)])
@pytest.mark.parametrize("delay", [None, 0])
def test_frames_of_any_size(size_hw, delay, model):
    random = np.random.default_rng(0)
    noise = [random.integers(0, 255, (*size_hw, 3), dtype=np.uint8) for _ in range(5)]
    found = run(model, noise, {"detect": 3, "delay": delay, "threshold": 0.0})
    assert len(found[0]) > 0


@pytest.mark.parametrize("delay", [None, 0])
def test_several_sources_tiles_and_batches_go_with_it(delay, model, images):
    streams, tile = (images[:5], images[3::-1]), (360, 360)
    options = {"detect": 3, "delay": delay, "tile": tile, "batch": 4}
    results = list(model.stream([*map(Frames, streams)], **options))
    for stream, frames in enumerate(streams):
        own = [(frame, found) for frame, found in results if frame.stream == stream]
        assert [frame.index for frame, _ in own] == list(range(len(frames)))
        assert_same(own[3][1], model.predict(frames[3], tile=tile))
        assert own[1][1].moved.all()


def test_tracks_go_on_over_moved_detections(model, images):
    counts = []
    for detect in (1, 4):
        found = run(model, images, {"detect": detect, "track": True})
        ids = [set(each.track_id[each.track_id >= 0].tolist()) for each in found]
        assert len(ids[0]) > 3
        assert all(len(own & ids[0]) > len(ids[0]) / 2 for own in ids)
        counts.append(len(set.union(*ids)))
    assert counts[1] <= counts[0] + 1


def test_moved_detections_begin_no_track_and_have_no_vote(every):
    tracker = maskjet.tracking.Tracker()
    ages = np.ones(len(every[0]), np.int64)
    assert (tracker.update(every[0].with_moved(ages), 0).track_id == -1).all()
    first = tracker.update(every[0].with_moved(0 * ages), 1 / 30)
    assert (first.track_id >= 0).any()
    others = maskjet.Detections(
        *(every[0].image_size, every[0].xyxy, every[0].confidence, (every[0].class_id + 1) % 5, every[0].rle),
        every[0].class_names,
        moved=ages,
    )
    for index in range(2, 6):
        again = tracker.update(others, index / 30)
    is_same = again.track_id == first.track_id
    assert is_same.sum() > 2
    np.testing.assert_array_equal(again.track_class_id[is_same], first.track_class_id[is_same])


def test_a_live_source_loses_no_frame_in_real_time(model, images):
    found = run(model, images * 3, {"detect": "realtime"}, is_live=True, waits_s=0.01)
    moved = [each.moved.max(initial=0) for each in found if len(each)]
    assert max(moved) > 0 == moved[0]


def test_a_reader_that_is_refused_changes_no_source(model, images):
    source = Frames(images)
    next(iter(source))
    with pytest.raises(InputError, match="source must be read once"):
        list(model.stream(source, detect=2))
    assert not source.keeps_yuv


def test_bytes_are_those_of_any_number_of_threads(model, images):
    import cv2

    before = cv2.getNumThreads()
    try:
        runs = []
        for threads in (1, 2):
            cv2.setNumThreads(threads)
            runs.append(run(model, images, {"detect": 5}))
    finally:
        cv2.setNumThreads(before)
    for one, other in zip(*runs, strict=True):
        assert_same(one, other)


def test_a_stream_that_is_stopped_ends(model, images):
    stop = threading.Event()
    results = model.stream(Frames(images), detect=4, stop=stop)
    next(results)
    stop.set()
    assert len(list(results)) < COUNT - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"detect": 0}, "detect must be a whole number from 1 to 64, or 'realtime', got 0"),
        ({"detect": 2.0}, "got 2.0"),
        ({"detect": True}, "got True"),
        ({"detect": "often"}, "got 'often'"),
        ({"detect": "realtime"}, "detect must be a number for files"),
        ({"detect": 4, "delay": 3}, "delay must be 0"),
        ({"detect": 4, "delay": 0, "covers": True}, "leave out delay"),
    ],
)
def test_what_is_refused(options, message, model, images):
    with pytest.raises(InputError, match=message):
        model.stream(Frames(images), **options)
