"""How a process's memory, descriptors and threads go over a soak."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_S = 0.5


@dataclass(frozen=True)
class Trend:
    """How a number of the service went over the second half of the soak."""

    start: float
    """Median of its first tenth."""
    end: float
    """Median of its last tenth."""
    most: float
    """Largest value of the whole soak."""
    per_minute: float
    """Slope of a straight line through the second half."""

    def __str__(self) -> str:
        return f"{self.start:.1f} to {self.end:.1f}, {self.per_minute:+.2f}/min, most {self.most:.1f}"


def trend(times_s: Sequence[float], values: Sequence[float]) -> Trend:
    """Sum up samples of the whole soak; slope and ends are those of the second half.

    Args:
        times_s: When each was taken, in seconds, ascending; at least two.
        values: The samples.
    """
    half = len(values) // 2
    times, late = times_s[half:], values[half:]
    tenth = max(1, len(late) // 10)
    mean_time, mean = statistics.fmean(times), statistics.fmean(late)
    spread = sum((time_s - mean_time) ** 2 for time_s in times)
    shared = sum((time_s - mean_time) * (value - mean) for time_s, value in zip(times, late, strict=True))
    slope = 60 * shared / spread if spread else 0.0
    return Trend(statistics.median(late[:tenth]), statistics.median(late[-tenth:]), max(values), slope)


class Sampler(threading.Thread):
    """Samples what a process holds.

    Args:
        pid: Its number.
        more: Further samples to take, by name.
    """

    def __init__(self, pid: int, more: Mapping[str, Callable[[], float]] | None = None) -> None:
        super().__init__(daemon=True)
        self._pid, self._more, self._stopped = pid, more or {}, threading.Event()
        self.times_s: list[float] = []
        """When each sample was taken, in seconds."""
        self.samples: dict[str, list[float]] = {"rss_mib": [], "descriptors": [], "threads": []}
        """Memory, open descriptors and threads, and what else was asked for."""
        self.samples |= {name: [] for name in self._more}

    def run(self) -> None:
        """Sample until stopped."""
        folder = Path(f"/proc/{self._pid}")
        while not self._stopped.wait(_SAMPLE_S):
            pages = int((folder / "statm").read_text().split()[1])
            self.samples["rss_mib"].append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
            self.samples["descriptors"].append(len(os.listdir(folder / "fd")))  # noqa: PTH208
            self.samples["threads"].append(len(os.listdir(folder / "task")))  # noqa: PTH208
            for name, sample in self._more.items():
                self.samples[name].append(sample())
            self.times_s.append(time.monotonic())

    def stop(self) -> None:
        """End the sampling."""
        self._stopped.set()
        self.join()

    def trend(self, name: str) -> Trend:
        """How one of `samples` went; stopped before."""
        return trend(self.times_s, self.samples[name])
