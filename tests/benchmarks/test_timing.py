"""How turns are taken."""

import torch

from benchmarks.timing import take_turns

CPU = torch.device("cpu")


def test_calls_take_turns():
    seen = []
    calls = {name: lambda turn, name=name: seen.append((turn, name)) for name in "ab"}
    times_ms = take_turns(calls, runs=2, device=CPU)
    assert seen == [(0, "a"), (1, "a"), (2, "a"), (0, "b"), (1, "b"), (2, "b")]
    assert [len(times) for times in times_ms.values()] == [2, 2]


def test_a_call_over_its_budget_gets_no_third_turn():
    turns = {"quick": [], "slow": []}
    calls = {name: taken.append for name, taken in turns.items()}
    take_turns(calls, runs=9, device=CPU, budget_s=0)
    assert turns == {"quick": [*range(8)], "slow": [*range(8)]}
