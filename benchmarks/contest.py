"""Contests: contenders for the same work are compared first, then timed in turns, then counted.

Times are taken in one process, the device waited for before and after each call. A contender whose comparison failed
can't be timed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from maskjet.host.profiling import Work, profile
from maskjet.host.timing import percentile, synchronize

Given = TypeVar("Given")

_TIMED = 3  # timed calls per turn
_UNCOUNTED = 3  # calls before those that `median_ms` counts
_AT_LEAST = 5  # timed calls of each contender, however long they take


def take_turns(
    calls: Mapping[str, Callable[[int], object]], *, runs: int, device: torch.device, budget_s: float = math.inf
) -> dict[str, list[float]]:
    """Time some calls, one after the other, again and again.

    A turn is four calls in a row, of which the first is not timed: it finds the host's caches as another left them,
    while on a video each call finds them as the one before it did.

    Args:
        calls: Warmed-up functions by name; each takes the number of the call, from 0, to choose its inputs.
        runs: Timed calls of each, at least 1.
        device: The one they work on.
        budget_s: A function timed at least five times and for this long in all gets no more turns.

    Returns:
        Milliseconds by name, one per timed call.
    """
    times_ms: dict[str, list[float]] = {name: [] for name in calls}
    for turn, done in enumerate(range(0, runs, _TIMED)):
        for name, call in calls.items():
            if done < _AT_LEAST or sum(times_ms[name]) < 1000 * budget_s:
                first = (1 + _TIMED) * turn
                call(first)
                timed = range(first + 1, first + 1 + min(_TIMED, runs - done))
                times_ms[name] += [_time_ms(call, number, device) for number in timed]
    return times_ms


def _time_ms(call: Callable[[int], object], number: int, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    result = call(number)
    synchronize(device)
    seconds = time.perf_counter() - start
    del result  # freeing it is not part of the work
    return 1000 * seconds


@dataclass(frozen=True)
class Entry(Generic[Given]):
    """A contender."""

    call: Callable[[Given], Any]
    """Does the work on one input."""
    share: Callable[[Given, Any, Any], float]
    """Gives the difference as a share of the tolerance, from the input, the expected and the actual result.

    0 is equal, more than 1 too different.
    """


@dataclass(frozen=True)
class Times:
    """Times of one contender."""

    each_ms: Sequence[float]
    """Time of each timed call, in milliseconds."""

    @property
    def runs(self) -> int:
        """Number of timed calls."""
        return len(self.each_ms)

    @property
    def p50_ms(self) -> float:
        """Median time of a call."""
        return statistics.median(self.each_ms)

    @property
    def p95_ms(self) -> float:
        """95th percentile of the time of a call."""
        return percentile(self.each_ms, 0.95)


class Contest(Generic[Given]):
    """Contenders for the same work on the same inputs.

    Args:
        inputs: The inputs, used in rotation.
        expect: Computes the expected result of an input.
        device: The one they work on.
    """

    def __init__(self, inputs: Sequence[Given], expect: Callable[[Given], Any], device: torch.device) -> None:
        self._inputs, self._expect, self._device = inputs, expect, device
        self._admitted: dict[str, Callable[[Given], Any]] = {}
        self.used: dict[str, float] = {}
        """Largest difference as a share of the tolerance, by name; infinite for NaN."""

    def enter(self, entries: Mapping[str, Entry[Given]]) -> list[str]:
        """Compare contenders on all inputs, and admit those that differ by no more than the tolerance.

        Returns:
            The names of those that are not admitted.
        """
        self.used |= dict.fromkeys(entries, 0.0)
        for given in self._inputs:
            expected = self._expect(given)
            for name, entry in entries.items():
                share = entry.share(given, expected, entry.call(given))
                self.used[name] = max(self.used[name], math.inf if math.isnan(share) else share)
        refused = [name for name in entries if self.used[name] > 1]
        self._admitted |= {name: entry.call for name, entry in entries.items() if name not in refused}
        return refused

    def time(self, *, runs: int, budget_s: float = math.inf, names: Collection[str] | None = None) -> dict[str, Times]:
        """Time the admitted contenders in turns, as `take_turns` does.

        Args:
            runs: Timed calls of each.
            budget_s: Time after which a contender gets no more turns.
            names: Contenders to time; None for all.
        """
        chosen = {name: call for name, call in self._admitted.items() if names is None or name in names}
        calls = {name: self._rotating(call) for name, call in chosen.items()}
        times_ms = take_turns(calls, runs=runs, device=self._device, budget_s=budget_s)
        return {name: Times(times) for name, times in times_ms.items()}

    def _rotating(self, call: Callable[[Given], Any]) -> Callable[[int], Any]:
        return lambda number: call(self._inputs[number % len(self._inputs)])

    def count(self, name: str) -> Work | None:
        """Count the work of an admitted contender on one input; None on a CPU.

        Measure all times first: the profiler slows later launches.
        """
        return profile(lambda: self._admitted[name](self._inputs[0]), self._device)


def median_ms(call: Callable[[int], object], runs: int, seconds: float = 0.0) -> float:
    """Median time of a call that waits for its result, in milliseconds; three calls before are not counted.

    Args:
        call: Called with its number, from 0.
        runs: Fewest calls that are counted.
        seconds: Seconds that they take at least.
    """
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _UNCOUNTED + runs or time.perf_counter() < end:
        begin = time.perf_counter()
        call(len(times))
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times[_UNCOUNTED:])
