"""Live sources: opened again when they break off or fall silent, while all others go on."""

import itertools
import math
import threading
import time
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from maskjet.errors import FrameError, InputError, SourceError, UnsupportedError
from maskjet.sources import live
from maskjet.sources.expansion import expand_sources
from maskjet.sources.frames import open_source
from maskjet.sources.live import LiveSource, Retries
from maskjet.sources.metering import Meter, SourceState
from maskjet.sources.selection import EVERYTHING, Selection
from maskjet.sources.source import Frame, Source


class Clock:
    """Time that passes only in waits; a `threading.Event` of it that is set after some waits."""

    def __init__(self, monkeypatch, waits=math.inf):
        self.now, self.waited, self._most = 100.0, [], waits
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(live._chance, "uniform", lambda _, high: high)

    def is_set(self):
        return len(self.waited) >= self._most

    def set(self):
        self._most = 0

    def wait(self, seconds):
        self.waited.append(seconds)
        self.now += seconds
        return self.is_set()


def fail_error():
    return SourceError("source must be there, it is away.")


def fail(*_):
    raise fail_error()


def ignore(_):
    pass


class TestRetries:
    def test_waits_double_up_to_half_a_minute(self, monkeypatch):
        clock = Clock(monkeypatch, waits=3000)
        assert Retries(clock).run(fail, ignore, waits=True) is None
        assert clock.waited == [0.5, 1, 2, 4, 8, 16, *[30] * 2994]

    def test_a_wait_is_shorter_by_up_to_a_half(self, monkeypatch):
        clock = Clock(monkeypatch, waits=7)
        drawn = iter([0.5, 1.0, 0.75, 0.6, 0.5, 1.0, 0.5])
        limits = set()
        monkeypatch.setattr(live._chance, "uniform", lambda *both: limits.add(both) or next(drawn))
        Retries(clock).run(fail, ignore, waits=True)
        assert clock.waited == [0.25, 1, 1.5, 2.4, 4, 16, 15]
        assert limits == {(0.5, 1)}

    def test_each_failure_but_the_last_is_told(self, monkeypatch):
        clock, told = Clock(monkeypatch), []
        errors = [SourceError("a"), FrameError("b", index=0), UnsupportedError("c")]
        with pytest.raises(UnsupportedError, match="c"):
            Retries(clock, patience_s=1.5).run(Mock(side_effect=errors), told.append)
        assert (told, clock.waited) == (errors[:2], [0.5, 1])
        with pytest.raises(ZeroDivisionError):  # which is no failure
            Retries(clock).run(lambda: 1 // 0, ignore)

    @pytest.mark.parametrize(("held_s", "wait_s"), [(59, 2), (60, 0.5)])
    def test_success_that_held_makes_waits_short_again(self, held_s, wait_s, monkeypatch):
        clock, work = Clock(monkeypatch), Mock(side_effect=[fail_error(), fail_error(), "opened", "again"])
        retries = Retries(clock)
        assert retries.run(work, ignore) == "opened"
        assert clock.waited == [0.5, 1]
        clock.now += held_s
        assert retries.run(work, ignore, waits=True) == "again"
        assert clock.waited[2:] == [wait_s]

    def test_nothing_is_tried_once_it_is_stopped(self):
        stop = threading.Event()
        retries, work = Retries(stop), Mock(side_effect=[fail_error()])
        assert retries.run(work, lambda _: stop.set()) is None
        assert retries.run(work, ignore) is None
        assert work.call_count == 1


class Connection(Source):
    """Frames of a connection that breaks off; its clock goes on by 1 / fps per frame."""

    kind = "video"
    is_live = True

    def __init__(self, clock, frames, *, fps=10.0, start_s=5.0, error=None, every=1, untimed=0):
        super().__init__("rtsp://gate/1")
        self._clock, self._frames, self._error, self._every = clock, frames, error, every
        self._start_s, self._step_s, self._untimed = start_s, 1 / (fps or 10), untimed
        self.fps, self.size_hw = fps and fps / every, (2, 2)
        self.is_closed = False

    def _read(self):
        for index in range(0, self._frames, self._every):
            self.frames_seen = index + 1
            image = np.zeros((*self.size_hw, 3), np.uint8)
            time_s = None if index < self._untimed else self._start_s + index * self._step_s
            yield Frame(index, time_s, image, self.name, f"{self.name}#{index}")
            self._clock.now += self._every * self._step_s
        if self._error is not None:
            raise self._error

    def close(self):
        self.is_closed = True


@pytest.fixture
def clock(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(live, "threading", SimpleNamespace(Event=lambda: clock))
    return clock


def live_of(connections, selection=EVERYTHING, **options):
    """A source over connections, each of which may be an error to raise instead."""
    first, *others = connections
    source = LiveSource(first, Mock(side_effect=others), selection, **options)
    source.asked = source._connect.call_args_list
    return source


def read(source, count=None):
    return list(itertools.islice(source, count))


class TestGaps:
    def test_index_and_time_go_on_and_the_gap_is_told(self, clock):
        broken = FrameError("'rtsp://gate/1' broke off: it was cut.", index=3)
        source = live_of([Connection(clock, 3, error=broken), fail_error(), Connection(clock, 3, start_s=0)])
        frames = read(source, 6)
        # Three frames in 0.3 s; then waits of 0.5 and 1 s: the fourth frame comes 1.6 s after the third.
        assert [frame.index for frame in frames] == list(range(6))
        assert [frame.time_s for frame in frames] == pytest.approx([5, 5.1, 5.2, 6.8, 6.9, 7.0])
        assert [frame.name for frame in frames] == [f"rtsp://gate/1#{frame.index}" for frame in frames]
        told = "rtsp://gate/1: frames are missing as it was not connected for 1.6 s"
        assert source.bad_frames == [(3, told)]
        assert source.frames_seen == 6

    def test_a_connection_that_held_has_its_own_losses(self, clock):
        first, second = Connection(clock, 2), Connection(clock, 2)
        source = live_of([first, second])
        first.bad_frames = [(1, "damaged")]
        frames = iter(source)
        [next(frames) for _ in range(2)]
        second.bad_frames = [(0, "damaged, too")]
        next(frames)
        assert [index for index, _ in source.bad_frames] == [1, 2, 2]
        assert [source.state.bad_frames, first.bad_frames, second.bad_frames] == [3, [], []]

    @pytest.mark.parametrize("fps", [None, 0.0, 90_000.0])
    def test_a_rate_that_is_none(self, fps, clock):
        frames = read(live_of([Connection(clock, 2), Connection(clock, 2, fps=fps, untimed=1)]), 4)
        assert [frame.index for frame in frames] == [0, 1, 2, 3]
        assert all(after.time_s > before.time_s for before, after in itertools.pairwise(frames))

    def test_a_first_frame_without_time_has_one_after_a_gap(self, clock):
        source = live_of([Connection(clock, 3, untimed=1), Connection(clock, 3, untimed=1, start_s=0)])
        times = [5.1, 5.2, 5.8, 5.9, 6.0]
        assert [frame.time_s for frame in read(source, 6)] == [None, *map(pytest.approx, times)]
        source = live_of([Connection(clock, 1, untimed=1), Connection(clock, 1), Connection(clock, 1)])
        assert [frame.time_s for frame in read(source, 3)] == [None, 5.0, pytest.approx(6.1)]

    def test_every_and_limit(self, clock):
        connections = [Connection(clock, frames, every=2) for frames in (4, 4, 1)]
        source = live_of(connections, Selection(every=2, limit=5))
        assert [frame.index for frame in read(source)] == [0, 2, 3, 5, 6]
        assert [(call.args[0].every, call.args[0].limit) for call in source.asked] == [(2, 3), (2, 1)]
        source = live_of([Connection(clock, 2)], Selection(limit=2))
        assert len(read(source)) == 2  # and then it is the end
        assert source.asked == []

    def test_old_entries_are_forgotten_but_counted(self, clock, monkeypatch):
        monkeypatch.setattr(live, "_MOST_BAD", 10)
        source = live_of([Connection(clock, 1) for _ in range(22)])
        frames = read(source, 22)
        assert len(source.bad_frames) == 10
        assert (source.state.bad_frames, source.state.reconnects) == (21, 21)
        assert source.bad_frames[-1][0] == frames[-1].index


class TestState:
    def test_it_tells_why_it_is_not_connected(self, clock):
        states = []

        def connect(_):
            states.append(source.state)
            if len(states) == 2:
                return Connection(clock, 1)
            raise fail_error()

        source = LiveSource(Connection(clock, 2), connect)
        frames = iter(source)
        [next(frames) for _ in range(2)]
        assert (source.state.connected, source.state.error, source.state.reconnects) == (True, None, 0)
        next(frames)
        assert [state.error for state in states] == ["the stream ended", "source must be there, it is away"]
        assert not any(state.connected or state.lag_s is not None for state in states)
        assert (source.state.connected, source.state.error, source.state.reconnects) == (True, None, 1)
        source.close()
        assert list(frames) == []
        assert source.state.connected  # when it was closed

    def test_connections_are_closed(self, clock):
        connections = [Connection(clock, 1) for _ in range(3)]
        frames = iter(live_of(connections))
        for count in range(1, 4):
            next(frames)
            assert [each.is_closed for each in connections] == [number < count - 1 for number in range(3)]
        frames.close()
        assert connections[2].is_closed

    def test_rate_and_lag_and_a_slow_clock_is_none(self, clock):
        meter = Meter()
        for number in range(20):
            clock.now += 0.1
            meter.add(number / 10)
        assert meter.fps == pytest.approx(10)
        assert meter.lag_s == pytest.approx(0)
        clock.now += 2.1
        meter.add(2.0)
        assert meter.lag_s == pytest.approx(2, abs=1e-3)
        meter.add(0.1)  # a stream that begins again
        assert meter.lag_s == 0
        clock.now += 6
        assert meter.fps == 0
        meter = Meter()
        for number in range(10_000):  # a day, one part in 10,000 slow
            clock.now += 8.64
            meter.add(number * 8.64 * (1 - 1e-4))
        assert meter.lag_s < 0.01

    def test_what_is_not_live_has_a_state_too(self):
        with open_source([np.zeros((4, 4, 3), np.uint8)] * 3) as source:
            frames = iter(source)
            next(frames)
            assert source.state.connected
            assert list(frames)
            assert source.state == SourceState(False, source.state.fps, None, 0, 0)

    def test_frames_that_come_at_once_are_no_rate(self, clock):
        meter = Meter()
        for _ in range(21):
            meter.add(None)
        assert meter.fps == 20
        clock.now += 4
        assert meter.fps == 5
        assert meter.lag_s is None

    def test_in_words(self):
        assert str(SourceState()) == "ended, 0.0 frames/s"
        assert str(SourceState(True, 24.96, None, 0, 0)) == "connected, 25.0 frames/s"
        broken = SourceState(False, 0.0, 0.25, 1, 2, 3, "Connection refused")
        assert str(broken) == (
            "not connected (Connection refused), 0.0 frames/s, 0.2 s late, 3 reconnects, 1 drop, 2 bad frames"
        )


class TestTheEnd:
    def test_after_the_patience(self, clock):
        source = live_of([Connection(clock, 2), *[fail_error()] * 9], reconnect_for=3)
        frames = iter(source)
        assert [next(frames).index, next(frames).index] == [0, 1]
        message = r"'rtsp://gate/1' broke off and could not be opened again for 3 s: source must be there, it is away"
        with pytest.raises(FrameError, match=message) as caught:
            next(frames)
        assert caught.value.index == 2
        assert clock.waited == [0.5, 1, 1.5]

    def test_each_gap_has_the_whole_patience(self, clock):
        gap = [fail_error(), fail_error()]
        connections = [Connection(clock, 1), *gap, Connection(clock, 1), *gap, Connection(clock, 1)]
        assert len(read(live_of(connections, reconnect_for=13), 3)) == 3

    def test_a_wrong_patience(self, clock):
        (unopened,) = expand_sources(0)
        for open_it in (partial(open_source, "nowhere.mp4"), unopened.open):
            for value in (-1, math.nan, "10", None, True):
                with pytest.raises(InputError, match="reconnect_for must be a number of seconds from 0, or infinite"):
                    open_it(reconnect_for=value)
        with pytest.raises(InputError, match="reconnect_for must be given when 'rtsp://gate/1' is opened"):
            open_source(live_of([Connection(clock, 1)]), reconnect_for=5)

    def test_closing_while_it_is_opened(self, clock):
        late = Connection(clock, 5)

        def connect(_):
            source.close()
            return late

        source = LiveSource(Connection(clock, 1), connect)
        assert len(read(source)) == 1
        assert late.is_closed
