"""Helpers that all time measurements share."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")


def synchronize(device: torch.device) -> None:
    """Wait until a device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0..1) of the values do not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def rotate(inputs: Sequence[_T], count: int, start: int = 0) -> Iterator[_T]:
    """Yield `count` inputs from number `start` on, beginning again after the last."""
    return (inputs[(start + number) % len(inputs)] for number in range(count))


def play(results: Iterator[Any], budget_s: float = math.inf) -> tuple[list[int], float]:
    """Consume results, detections or pairs with frames, until they end or time is up; then close them.

    Returns the number of detections of each frame, and frames per second.
    """
    start, counts = time.perf_counter(), []
    with closing(results):  # type: ignore[type-var]
        for result in results:
            counts.append(len(result[1] if isinstance(result, tuple) else result))
            if time.perf_counter() - start > budget_s:
                break
        seconds = time.perf_counter() - start
    return counts, len(counts) / seconds
