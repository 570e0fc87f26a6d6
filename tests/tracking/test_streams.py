"""Tracking in streams: the rows stay as they are, whatever the depth, the batch and the tracker."""

from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

import maskjet
from maskjet.errors import InputError
from maskjet.sources.frames import open_source
from maskjet.tracking import Tracker
from tests.test_postprocessing import assert_same

SIZE = (120, 208)
FRAMES = 6


@pytest.fixture(scope="module")
def model():
    return maskjet.load("demo", device="cpu", batch=4, input_size=(160, 160))


@pytest.fixture(scope="module")
def images():
    street = maskjet.traffic.Street(seed=3, size_hw=SIZE)
    return [street.frame(index).image for index in range(FRAMES)]


def found(model, source, **options):
    with closing(model.stream(source, **options)) as results:
        return [detections for _, detections in results]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threshold": {"person": 0.3}},  # others have no weak ones, which would come before persons
        {"classes": ["car", "truck"], "max_detections": 3},
    ],
)
def test_tracking_changes_no_row(model, images, options):
    plain, tracked = (found(model, images, track=track, **options) for track in (False, True))
    assert sum(map(len, plain)) > FRAMES
    for one, other in zip(plain, tracked, strict=True):
        assert_same(other, one)
        assert one.track_id is None
    assert max(each.track_id.max() for each in tracked) > 0
    assert tracked[-1].track_class_id.dtype == np.int64


def test_each_source_has_its_tracker_and_depth_and_batch_change_nothing(model, images):
    alone = [each.track_id.tolist() for each in found(model, images, track=True)]
    batched = found(model, images, track=True, depth=3, batch=2, whole_batches=True)
    assert [each.track_id.tolist() for each in batched] == alone
    other = [each.track_id.tolist() for each in found(model, images[::-1], track=True)]
    together = {0: [], 1: []}
    for frame, detections in model.stream([open_source(images), open_source(images[::-1])], track=True):
        together[frame.stream].append(detections.track_id.tolist())
    assert together == {0: alone, 1: other}


class Recorder:
    """A tracker that keeps what it got, and gives each detection its row's number."""

    def __init__(self):
        self.given = []

    def update(self, found, time_s):
        self.given.append((found, time_s))
        return found.with_tracks(np.arange(len(found)))


def test_a_tracker_gets_weaker_detections_too(model, images):
    recorder, before = Recorder(), model.report()
    tracked = found(model, images, track=recorder, threshold=0.6)
    report = model.report()
    assert report.detections - before.detections == sum(map(len, tracked))
    assert report.tracks - before.tracks == max(len(given) for given, _ in recorder.given) - 1  # the highest id
    assert f"{report.tracks} tracks in {report.tracking_ms:.2f} ms per frame" in str(report)
    for (given, time_s), each in zip(recorder.given, tracked, strict=True):
        assert time_s is None
        assert_same(given[: len(each)], each)
        assert (given.confidence[len(each) :] <= 0.6).all()
        assert each.track_id.tolist() == [*range(len(each))]
    weakest = min(given.confidence.min() for given, _ in recorder.given)
    assert 0.1 < weakest < 0.3


def test_wrong_trackers_are_named(model, images):
    for update in (lambda found, _: found[:1], lambda *_: None):
        with pytest.raises(InputError, match=r"track\.update must return the \d+ detections that it got, got "):
            found(model, images[:1], track=SimpleNamespace(update=update))
    for source, track in ((images, 3), ([open_source(images), open_source(images)], Recorder())):
        with pytest.raises(InputError) as caught:
            model.stream(source, track=track)
        assert caught.value.argument == "track"


def test_the_tracker_of_a_model_has_its_threshold(model, images):
    tracker, same = model.tracker(), Tracker(threshold=0.5)
    for image in images:
        detections = model.predict(image, threshold=0.1)
        tracked = tracker.update(detections)
        assert tracked.track_id.tolist() == same.update(detections).track_id.tolist()
        assert tracked.draw().shape == image.shape  # it knows its image, as the detections did


def test_a_tracker_of_another_package(model, images):
    """One of roboflow's `trackers`, which take and return `supervision.Detections`."""
    trackers = pytest.importorskip("trackers")

    class Adapter:
        def __init__(self, tracker):
            self.tracker = tracker

        def update(self, found, time_s):
            given = found.to_supervision()
            given.data["row"] = np.arange(len(found))
            tracked = self.tracker.update(given, timestamp=time_s)
            ids = np.full(len(found), -1)
            ids[tracked.data["row"]] = tracked.tracker_id
            return found.with_tracks(ids)

    tracked = found(model, images, track=Adapter(trackers.ByteTrackTracker()))
    assert len(set(tracked[-1].track_id[tracked[-1].track_id >= 0]) & set(tracked[-2].track_id)) > 2
