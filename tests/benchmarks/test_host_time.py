"""The benchmark of the host's time adds up what it says, and leaves the engine as it was."""

import threading

import pytest

from benchmarks import host_time


def test_a_method_within_another_counts_once(monkeypatch):
    clock = iter(range(0, 10_000_000, 1000))  # each look at a clock takes a microsecond
    monkeypatch.setattr(host_time.time, "thread_time_ns", lambda: next(clock))
    monkeypatch.setattr(host_time.time, "perf_counter_ns", lambda: next(clock))
    watch = host_time._Watch()
    inner = watch.wrap("copying", lambda: 7)
    outer = watch.wrap("submitting, the rest", lambda: inner() + inner())
    assert outer() == 14
    spent = {each.name: (each.calls, each.cpu_us, each.wall_us) for each in watch.sections(1)}
    assert spent["copying"] == (2, 2.0, 6.0)
    assert spent["submitting, the rest"] == (1, 9.0 - 2.0, 11.0 - 6.0)
    assert spent["waiting"] == (0, 0, 0)
    watch.begin()
    assert {each.calls for each in watch.sections(1)} == {0}


def test_other_threads_and_errors():
    watch = host_time._Watch()

    def breaks():
        raise KeyError("x")

    wrapped = watch.wrap("copying", breaks)
    with pytest.raises(KeyError):
        wrapped()
    thread = threading.Thread(target=watch.wrap("copying", lambda: None))
    thread.start()
    thread.join()
    assert [each.calls for each in watch.sections(1)][1] == 1
    assert watch._inner == []


def test_sections_are_methods_that_there_are():
    assert all(callable(vars(owner)[method]) for owner, method in host_time.SECTIONS.values())
