"""Contests: compared before anything is timed, and timed in turns."""

import math

import torch

from benchmarks.contest import Contest, Entry, take_turns

CPU = torch.device("cpu")


def test_calls_take_turns():
    seen = []
    calls = {name: lambda turn, name=name: seen.append((turn, name)) for name in "ab"}
    times_ms = take_turns(calls, runs=2, device=CPU)
    assert seen == [(0, "a"), (1, "a"), (2, "a"), (0, "b"), (1, "b"), (2, "b")]
    assert [len(times) for times in times_ms.values()] == [2, 2]


def _differ(given, expected, actual):
    return abs(actual - expected) / given


def test_only_those_whose_comparison_passed_are_timed():
    contest = Contest([1.0, 2.0, 4.0], lambda given: 10 * given, CPU)
    called = []
    entries = {
        "equal": Entry(lambda given: called.append(given) or 10 * given, _differ),
        "within": Entry(lambda given: 10 * given + 1, _differ),
        "off on the second input": Entry(lambda given: 10 * given + 5 * (given == 2), _differ),
        "no number": Entry(lambda given: math.nan if given == 2 else 10 * given, _differ),
    }
    assert contest.enter(entries) == ["off on the second input", "no number"]
    assert contest.used == {"equal": 0, "within": 1, "off on the second input": 2.5, "no number": math.inf}
    assert called == [1, 2, 4]
    times = contest.time(runs=4)
    assert {name: each.runs for name, each in times.items()} == {"equal": 4, "within": 4}
    assert called[3:] == [1, 2, 4, 1, 2, 4]
    assert list(contest.time(runs=1, names=["within", "no number"])) == ["within"]
    assert times["equal"].p50_ms <= times["equal"].p95_ms
    assert contest.count("equal") is None
