"""Times that can be compared: taken in turns in one process, the device waited for before and after each call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch

_MIN_TURNS = 5


def take_turns(
    calls: Mapping[str, Callable[[int], object]], *, runs: int, device: torch.device, budget_s: float = math.inf
) -> dict[str, list[float]]:
    """Time some calls, one after the other, again and again.

    A turn is two calls, of which the second is timed: the first finds the host's caches as another left them, while on
    a video each call finds them as the one before it did.

    Args:
        calls: By name; each is given the number of the call, from 0, to choose its inputs by. They must be warm.
        runs: Turns for each, at least 1.
        device: The one they work on.
        budget_s: A call that took this long in all, and had five turns, gets no more.

    Returns:
        Milliseconds by name, one per turn.
    """
    times_ms: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(runs):
        for name, call in calls.items():
            if turn < _MIN_TURNS or sum(times_ms[name]) < 1000 * budget_s:
                call(2 * turn)
                times_ms[name].append(_time_ms(call, 2 * turn + 1, device))
    return times_ms


def _time_ms(call: Callable[[int], object], turn: int, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    result = call(turn)
    synchronize(device)
    seconds = time.perf_counter() - start
    del result  # freeing it is not part of the work
    return 1000 * seconds


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0..1) of the values do not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
