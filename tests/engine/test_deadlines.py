"""Deadlines: the most urgent first, none that is late anyway, and a source that gives way where there are too many."""

import threading
import time
from contextlib import closing

import numpy as np
import pytest

from maskjet.engine import deadlines as module
from maskjet.engine.deadlines import Deadlines
from maskjet.engine.reading import Readers
from maskjet.errors import InputError, SourceError
from maskjet.sources.source import Frame, Source
from tests.waiting import until

PIXELS = np.zeros((2, 2, 3), np.uint8)


class Camera(Source):
    """Gives frames with the ages in seconds that it is asked for, and ends when it is closed."""

    kind, is_live = "video", True

    def __init__(self, name="camera"):
        super().__init__(name)
        self._ages, self._came = [], threading.Semaphore(0)

    def give(self, *ages):
        for age in ages:
            self._ages.append(age)
            self._came.release()

    def close(self):
        self._is_closed = True
        self._came.release()

    def _read(self):
        while True:
            self._came.acquire()
            if self._is_closed:
                return
            index, age = self.frames_seen, self._ages.pop(0)
            self.frames_seen += 1
            yield Frame(index, None, PIXELS, self.name, self.name, arrived_s=time.monotonic() - age)


@pytest.fixture
def clock(monkeypatch):
    """A clock of the deadlines that stands still until it is moved."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    monkeypatch.setattr(module, "time", clock := Clock())
    return clock


def reading(deadlines, cameras, room=2):
    return closing(Readers(cameras, room, deadlines=deadlines))


def has_read(cameras, *counts):
    until(lambda: tuple(camera.frames_seen for camera in cameras) == counts)
    time.sleep(0.02)  # the frame that was read last is queued


def streams(frames):
    return [frame.stream for frame in frames]


@pytest.mark.parametrize(("priorities", "expected"), [((), [1, 2, 0]), ((1, 1, 2), [2, 1, 0])])
def test_a_batch_takes_the_most_urgent_frames(priorities, expected):
    cameras, deadlines = [Camera(), Camera(), Camera()], Deadlines(9, priorities=priorities)
    learn(deadlines, 1, 0.01)
    with reading(deadlines, cameras) as readers:
        for camera, age in zip(cameras, (0.1, 0.3, 0.2), strict=True):
            camera.give(age)
        has_read(cameras, 1, 1, 1)
        assert streams(readers.take(2, waits=True)) == expected[:2]
        assert streams(readers.take(2, waits=True)) == expected[2:]


def learn(deadlines, size, seconds):
    """Let a batch take so long, which ends now."""
    deadlines.begin(size)
    deadlines.learn(time.monotonic() - seconds)


def test_what_can_not_be_ready_in_time_is_dropped_before_it_is_taken(monkeypatch):
    camera, deadlines = Camera(), Deadlines(1)
    with reading(deadlines, [camera], room=9) as readers:
        learn(deadlines, 1, 0.3)
        camera.give(2, 0.8, 0.1)
        has_read([camera], 3)
        (frame,) = readers.take(3, waits=True)
        assert (frame.index, camera.frames_dropped, readers.dropped) == (2, 2, 2)
        camera.give(0.5)  # 0.3 s to wait for the first batch, and 0.3 s by itself
        has_read([camera], 4)
        assert readers.take(1, waits=False) == []
        readers.done([frame], time.monotonic())
        assert (camera.frames_dropped, camera.state.latency_s >= 0.1) == (3, True)
        learn(deadlines, 1, 50)
        monkeypatch.setattr(module, "_STALE_S", 0.0)  # a slow batch is forgotten, or there would be no other
        camera.give(0.8)
        assert [frame.index for frame in readers.take(1, waits=True)] == [4]


def test_what_is_in_flight_delays_what_is_taken_now(clock):
    deadlines = Deadlines(1)
    deadlines.begin(1)
    clock.now += 0.3
    deadlines.learn(clock.now - 0.3)
    clock.now += 0.5  # it is idle
    fits = [deadlines.fits(Frame(0, None, PIXELS, "", "", arrived_s=clock.now - age)) for age in (0.6, 0.8)]
    deadlines.begin(1)
    fits += [deadlines.fits(Frame(0, None, PIXELS, "", "", arrived_s=clock.now - age)) for age in (0.3, 0.6)]
    assert fits == [True, False, True, False]


def test_a_batch_is_as_large_as_its_first_deadline_allows():
    cameras, deadlines = [Camera() for _ in range(4)], Deadlines(1)
    with reading(deadlines, cameras) as readers:
        learn(deadlines, 1, 0.2)
        for camera in cameras:
            camera.give(0.3)
        has_read(cameras, 1, 1, 1, 1)
        assert len(readers.take(4, waits=True)) == 3  # in about 0.6 s; a fourth would take it 0.8


def test_a_camera_is_read_on_while_its_frames_wait():
    camera = Camera()
    with reading(Deadlines(9), [camera], room=2) as readers:
        camera.give(*[0.0] * 20)
        has_read([camera], 20)
        taken = [readers.take(1, waits=False) for _ in range(3)]
        assert [frame.index for frames in taken for frame in frames] == [18, 19]
        assert camera.frames_dropped == 18


@pytest.mark.parametrize(("priorities", "rates"), [((), ([1, 1], [1, 2], [2, 2])), ((1, 2), ([1, 1], [2, 1], [4, 1]))])
def test_the_least_important_source_gets_a_lower_rate_and_its_rate_back(priorities, rates, clock, caplog):
    deadlines = Deadlines(1, priorities=priorities, when_full="slower")
    cameras = [Camera("yard"), Camera("gate")]
    with reading(deadlines, cameras, room=9) as readers:
        until(lambda: all(queue.source is not None for queue in readers._queues))
        readers.take(1, waits=False)
        for dropped, expected in zip((0, 1, 1), rates, strict=True):
            for _ in range(2):
                clock.now += module._WINDOW_S
                deadlines.count(seen=50, dropped=dropped)
                readers.take(1, waits=False)
            assert [camera.taken_every for camera in cameras] == expected
        slow = max(cameras, key=lambda camera: camera.taken_every)
        assert f"one frame in {slow.taken_every} is taken of {slow.name!r}, as the results of all" in caplog.text
        assert f"1 frame in {slow.taken_every} taken" in str(slow.state)
        slow.give(*[0.0] * 8)
        until(lambda: slow.frames_seen == 8)
        until(lambda: slow.frames_dropped >= 8 - 8 // slow.taken_every)
        before = sum(camera.taken_every for camera in cameras)
        clock.now += module._CALM_S
        readers.take(1, waits=False)
        assert sum(camera.taken_every for camera in cameras) < before


def test_the_last_source_is_refused_where_the_machine_is_full(clock):
    deadlines, cameras = Deadlines(1, when_full="refuse"), [Camera("yard"), Camera("gate")]
    with reading(deadlines, cameras) as readers:
        until(lambda: all(queue.source is not None for queue in readers._queues))
        readers.take(1, waits=False)
        for dropped in (1, 0, 1, 1):  # one window alone may be a burst
            assert readers._queues[1].is_reading
            clock.now += module._WINDOW_S
            deadlines.count(seen=50, dropped=dropped)
            readers.take(1, waits=False)
        until(lambda: not readers._queues[1].is_reading)
        assert readers._queues[0].is_reading
        with pytest.raises(SourceError, match="No frames are taken of 'gate', as the results of all can't be ready"):
            readers.check()


def test_the_load_is_that_of_batches_of_the_best_size(clock):
    deadlines = Deadlines(1)
    assert deadlines.load is None
    began_s = clock.now
    for size, spent_s in ((1, 0.1), (4, 0.2), (1, 0.1)):
        deadlines.count(seen=size)
        deadlines.begin(size)
        clock.now += spent_s
        deadlines.learn(clock.now - spent_s)
        clock.now += 1
    assert deadlines.load == pytest.approx(6 / (clock.now - 1 - began_s) * 0.05)
    assert deadlines.of([0]).load is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_latency": 0}, "max_latency must be a number of seconds above 0, got 0"),
        ({"max_latency": True}, "max_latency must be a number of seconds above 0, got True"),
        ({"max_latency": 1, "priorities": [0]}, "priorities must be a whole number of at least 1, got 0"),
        ({"max_latency": 1, "when_full": "later"}, "when_full must be one of"),
    ],
)
def test_wrong_promises_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Deadlines(**arguments)
