"""Frame rate and latency of a source."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

_RATE_S = 5.0  # window of the frame rate
_LEAST_RATE_S = 1.0  # shortest window: a stream starts with a burst of buffered frames
_MOST_MOMENTS = 256
_DRIFT = 2e-4  # assumed drift of a camera's clock, seconds per second


@dataclass(frozen=True)
class SourceState:
    """State of a source at one moment."""

    connected: bool = False
    """Whether the source is open; False during reconnection, and after its last frame. Closing a source does not
    change it."""
    fps: float = 0.0
    """Frames read per second, over the last 5 s."""
    lag_s: float | None = None
    """Delay of the last frame relative to the least delayed one, in seconds; None if the source is not live or its
    frames have no times."""
    drops: int = 0
    """Frames skipped because newer ones had arrived, or as they could not be ready in time."""
    bad_frames: int = 0
    """Entries in `Source.bad_frames` so far: frames that could not be decoded, and runs of missing frames."""
    reconnects: int = 0
    """Number of reconnections of a live source."""
    error: str | None = None
    """Why a live source is not connected; None if it is, or has ended."""
    latency_s: float | None = None
    """99th percentile of the time from a live frame's packet to its result, of the last 256; None if there is none."""
    taken_every: int = 1
    """Distance of the frames that are taken, as the machine is full; 1 for all."""

    def __str__(self) -> str:
        away = "ended" if self.error is None else f"not connected ({self.error})"
        lag = [] if self.lag_s is None else [f"{self.lag_s:.1f} s late"]
        lag += [] if self.latency_s is None else [f"results within {1000 * self.latency_s:.0f} ms (p99)"]
        lag += [f"1 frame in {self.taken_every} taken"] if self.taken_every > 1 else []
        counts = {"reconnect": self.reconnects, "drop": self.drops, "bad frame": self.bad_frames}
        return ", ".join(
            [
                "connected" if self.connected else away,
                f"{self.fps:.1f} frames/s",
                *lag,
                *(f"{number} {noun}{'s'[: number != 1]}" for noun, number in counts.items() if number),
            ]
        )


class Meter:
    """Measures the rate and lag of a source's frames; one thread adds frames, any may read.

    A frame's lateness is its time of arrival minus its presentation time. Its lag is its lateness minus the least so
    far. The least may grow slowly, or the drift of a slow clock would count as lag.
    """

    def __init__(self) -> None:
        self._moments: deque[float] = deque(maxlen=_MOST_MOMENTS)
        self.latencies: deque[float] = deque(maxlen=_MOST_MOMENTS)
        """Times from packets to results, in seconds; any thread adds them."""
        self._least: tuple[float, float] | None = None  # least lateness, and time of its measurement
        self._last_s = -math.inf  # time of the last frame
        self.lag_s: float | None = None
        """Lag of the last frame; None if frames have no times."""

    def add(self, time_s: float | None) -> None:
        """Record a frame that arrives now, with its presentation time."""
        now = time.monotonic()
        self._moments.append(now)
        if time_s is None:
            return
        if time_s < self._last_s:  # the clock jumped back
            self.begin_anew()
        self._last_s = time_s
        late_s = now - time_s
        least_s = late_s
        if self._least is not None:
            least_s = min(late_s, self._least[0] + _DRIFT * (now - self._least[1]))
        self._least = least_s, now
        self.lag_s = late_s - least_s

    def begin_anew(self) -> None:
        """Reset the lag, before frames of another connection or clock."""
        self._least = self.lag_s = None

    @property
    def latency_s(self) -> float | None:
        """99th percentile of the last latencies, in seconds; None if there are none."""
        from maskjet.host.timing import percentile  # here, as it loads PyTorch

        latencies = tuple(self.latencies)
        return percentile(latencies, 0.99) if latencies else None

    @property
    def fps(self) -> float:
        """Recent frames per second; 0 after fewer than two frames."""
        moments, now = tuple(self._moments), time.monotonic()
        recent = moments[bisect_left(moments, now - _RATE_S) :]
        return (len(recent) - 1) / max(now - recent[0], _LEAST_RATE_S) if recent else 0.0
