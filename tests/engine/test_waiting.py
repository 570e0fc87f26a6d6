"""Waiting for a batch without a GPU: asleep for most of the time, polls near the end, and a bound."""

from types import SimpleNamespace

import pytest

from maskjet.engine import slot as slots


class Clock:
    """A clock that only sleeping moves on; each sleep takes 60 µs more than it should."""

    def __init__(self):
        self.now, self.sleeps = 100.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds + 60e-6


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(slots, "time", clock)
    return clock


def slot_with(clock):
    slot = object.__new__(slots.GraphSlot)
    graph = SimpleNamespace(expected_s=0.0)
    slot._running, slot._launched_s = (graph, 1), clock.now
    return slot, graph


def wait(slot, clock, took, came_late=0.0):
    """A batch that takes some time, whose result is asked for later."""
    slot._launched_s = clock.now
    done = clock.now + took
    slot._downloaded = SimpleNamespace(query=lambda: clock.now >= done)
    clock.now += came_late
    clock.sleeps.clear()
    slot.drain()
    return clock.now - done, len(clock.sleeps)


def test_the_time_of_the_last_batch_is_slept_through(clock):
    slot, graph = slot_with(clock)
    _, polls = wait(slot, clock, 4e-3)
    assert 50 <= polls <= 51  # nothing is known yet
    for _ in range(5):
        late, polls = wait(slot, clock, 4e-3)
        assert 0 <= late < 90e-6
        assert polls < 12
    assert graph.expected_s == pytest.approx(4e-3, abs=1e-4)


def test_a_batch_that_is_done_early_shortens_the_next_sleep(clock):
    slot, graph = slot_with(clock)
    wait(slot, clock, 4e-3)
    lateness = [wait(slot, clock, 1e-3)[0] for _ in range(12)]
    assert lateness[0] > 2e-3
    assert sorted(lateness[:3], reverse=True) == lateness[:3]
    assert lateness[-1] < 90e-6
    assert graph.expected_s < 1.2e-3


def test_nobody_sleeps_for_a_batch_that_is_done(clock):
    slot, graph = slot_with(clock)
    wait(slot, clock, 4e-3)
    assert wait(slot, clock, 4e-3, came_late=5e-3) == (pytest.approx(1e-3), 0)
    assert graph.expected_s < 4e-3


def test_a_device_that_does_not_answer_is_given_up(clock, monkeypatch):
    monkeypatch.setattr(slots, "_PATIENCE_S", 2.0)
    slot, graph = slot_with(clock)
    wait(slot, clock, 4e-3)
    before = graph.expected_s
    with pytest.raises(RuntimeError, match="the GPU did not answer within 2 s"):
        wait(slot, clock, 1e9)
    assert 102 < clock.now < 102.1
    assert graph.expected_s == before


def test_an_idle_slot_is_drained_at_once(clock):
    slot, _ = slot_with(clock)
    slot._running = None
    slot.drain()
    assert clock.sleeps == []
