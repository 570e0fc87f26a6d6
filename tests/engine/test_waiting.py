"""Waiting for a batch without a GPU: asleep for most of the time, polls near the end, and a bound.

Where nothing is decoded, polls are made without a pause, for a bounded time.
"""

from types import SimpleNamespace

import pytest

from maskjet.engine import slot as slots

SMALL, LARGE = (("kind", pixels) for pixels in (18, 23))


class Clock:
    """A clock that only sleeping and yielding move on; each sleep takes 60 µs more than it should."""

    def __init__(self):
        self.now, self.sleeps, self.yields = 100.0, [], 0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds + 60e-6

    def sched_yield(self):
        self.yields += 1
        self.now += 2e-6


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(slots, "time", clock)
    monkeypatch.setattr(slots, "os", clock)
    return clock


def slot_with(clock, all_cores=False):
    slot = object.__new__(slots.GraphSlot)
    slot._running, slot._launched_s, slot._all_cores = slots._Running(None, [], SMALL), clock.now, all_cores
    slot._expected_s = {}
    return slot


def wait(slot, clock, took, came_late=0.0):
    """A batch that takes some time, whose result is asked for later."""
    slot._launched_s = clock.now
    done = clock.now + took
    slot._downloaded = SimpleNamespace(query=lambda: clock.now >= done)
    clock.now += came_late
    clock.sleeps.clear()
    clock.yields = 0
    slot.drain()
    return clock.now - done, len(clock.sleeps)


def test_the_time_of_the_last_batch_is_slept_through(clock):
    slot = slot_with(clock)
    _, polls = wait(slot, clock, 4e-3)
    assert 50 <= polls <= 51  # nothing is known yet
    for _ in range(5):
        late, polls = wait(slot, clock, 4e-3)
        assert 0 <= late < 90e-6
        assert polls < 12
    assert clock.yields == 0


@pytest.mark.parametrize(("took", "sleeps"), [(0.3e-3, 0), (0.7e-3, 0), (4e-3, 1), (0.1, 1)])
def test_the_end_is_not_slept_through_where_nothing_is_decoded(clock, took, sleeps):
    slot = slot_with(clock, all_cores=True)
    wait(slot, clock, took)
    for _ in range(5):
        late, polls = wait(slot, clock, took)
        assert 0 <= late < 3e-6
        assert polls == sleeps
        assert clock.yields < 510  # 1 ms


def test_polls_without_a_pause_are_bounded(clock):
    slot = slot_with(clock, all_cores=True)
    wait(slot, clock, 4e-3)
    late, sleeps = wait(slot, clock, 8e-3)
    assert late < 90e-6
    assert 40 < sleeps < 60
    assert 740 < clock.yields <= 751  # 1.5 ms


def test_a_batch_that_is_done_early_shortens_the_next_sleep(clock):
    slot = slot_with(clock)
    wait(slot, clock, 4e-3)
    lateness = [wait(slot, clock, 1e-3)[0] for _ in range(12)]
    assert lateness[0] > 2e-3
    assert sorted(lateness[:3], reverse=True) == lateness[:3]
    assert lateness[-1] < 90e-6


def test_a_small_frame_is_not_slept_through_because_a_large_one_came_before(clock):
    slot = slot_with(clock)
    wait(slot, clock, 0.8e-3)
    slot._running = slot._running._replace(expected=LARGE)
    wait(slot, clock, 9e-3)
    slot._running = slot._running._replace(expected=SMALL)
    assert wait(slot, clock, 0.8e-3)[0] < 150e-6


def test_nobody_sleeps_for_a_batch_that_is_done_or_is_not_there(clock):
    slot = slot_with(clock)
    wait(slot, clock, 4e-3)
    assert wait(slot, clock, 4e-3, came_late=5e-3) == (pytest.approx(1e-3), 0)
    slot._running = None
    slot.drain()
    assert clock.sleeps == []


def test_a_device_that_does_not_answer_is_given_up(clock, monkeypatch):
    monkeypatch.setattr(slots, "_PATIENCE_S", 2.0)
    slot = slot_with(clock)
    wait(slot, clock, 4e-3)
    with pytest.raises(RuntimeError, match="the GPU did not answer within 2 s"):
        wait(slot, clock, 1e9)
    assert 102 < clock.now < 102.1
