"""Times that can be compared: taken in turns in one process, the device waited for before and after each call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch

from maskjet.timing import synchronize

_TIMED = 3  # calls of a turn
_AT_LEAST = 5  # calls of each, however long they take


def take_turns(
    calls: Mapping[str, Callable[[int], object]], *, runs: int, device: torch.device, budget_s: float = math.inf
) -> dict[str, list[float]]:
    """Time some calls, one after the other, again and again.

    A turn is four calls in a row, of which the first is not timed: it finds the host's caches as another left them,
    while on a video each call finds them as the one before it did.

    Args:
        calls: By name; each is given the number of the call, from 0, to choose its inputs by. They must be warm.
        runs: Timed calls of each, at least 1.
        device: The one they work on.
        budget_s: A call that took this long in all, and was timed five times, gets no more turns.

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


_COPIED_BYTES = {"cpu": 2**27, "cuda": 2**29}
"""By device: four times the largest cache that we have seen; on a GPU enough to hide the launch."""


def measure_bandwidth(device: torch.device) -> float:
    """Bytes per second that a device reads and writes in the fastest of ten copies within its memory."""
    size = _COPIED_BYTES[device.type]
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    times_ms = take_turns({"copy": lambda _: target.copy_(source)}, runs=10, device=device)["copy"]
    return 2000 * size / min(times_ms)
