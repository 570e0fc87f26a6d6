"""Deadlines of live frames: which goes first, which is dropped, and which source gives way where a machine is full."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Literal, get_args

from maskjet.checks import check_choice, check_count
from maskjet.errors import InputError
from maskjet.sources.source import Frame

WhenFull = Literal["slower", "refuse"]
_STALE_S = 1.0  # time without results after which times are learnt anew, or one slow batch would be the last
_WINDOW_S = 2.0  # time over which drops are counted
_MOST_DROPPED = 0.01  # share of a window's frames; more break the promise
_CALM_S = 60.0  # time without drops after which a source gets its rate back


class Deadlines:
    """A promise for live sources: each result within `max_latency` seconds of its frame's packet, or none.

    The time runs from the demuxer's handing out the packet to the result's being handed over. Frames go in the order of
    their deadlines, in batches that are as large as the first deadline allows. One that can't be ready in time, as
    batches take now, is dropped before the network sees it, and counted in `Source.frames_dropped`. For one stream;
    whole frames alone, all of them detected on.

    Args:
        max_latency: Seconds, above 0.
        priorities: A whole number from 1 for each source, or none; frames of a higher one go first.
        when_full: What happens where more than 1 % of the frames are dropped, in two seconds and the two after them, as
            a burst is over by then: "slower" takes every second frame of a source, then every fourth, up to the 16th,
            and twice as many again after a minute without drops; "refuse" ends it with a SourceError. It is the last
            one of those of the lowest priority. None drops frames of all.

    Raises:
        InputError: An argument is not as above.

    Examples:
        >>> import maskjet
        >>> deadlines = maskjet.Deadlines(0.06, priorities=(1, 2), when_full="slower")
        >>> results = maskjet.load("demo").stream(["rtsp://yard/1", "rtsp://gate/1"], deadlines=deadlines)
    """

    def __init__(
        self, max_latency: float, *, priorities: Sequence[int] = (), when_full: WhenFull | None = None
    ) -> None:
        if isinstance(max_latency, bool) or not isinstance(max_latency, int | float) or not 0 < max_latency < math.inf:
            raise InputError(f"max_latency must be a number of seconds above 0, got {max_latency!r}.")
        for priority in priorities:
            check_count("priorities", priority)
        if when_full is not None:
            check_choice("when_full", when_full, get_args(WhenFull))
        self.max_latency, self.priorities, self.when_full = max_latency, tuple(priorities), when_full
        self._times: dict[int, tuple[float, float]] = {}  # of batches by size: means and deviations, see `learn`
        self._in_flight: deque[int] = deque()  # sizes of the batches that were taken
        self._done_s, self._free_s = 0.0, 0.0  # when the last results came, and when all in flight are to be done
        self._began_s: float | None = None  # of the first batch
        self._seen, self._window = 0, (0.0, 0, 0)  # frames so far; a window's begin, its frames and drops
        self._is_full = False  # whether too much was dropped in the last window
        self._calm_s = 0.0  # begin of the time without drops

    def of(self, positions: Sequence[int]) -> Deadlines:
        """The same promise for some of the sources, by their positions, in a stream of their own."""
        priorities = [self.priorities[each] for each in positions] if self.priorities else ()
        return Deadlines(self.max_latency, priorities=priorities, when_full=self.when_full)

    @property
    def load(self) -> float | None:
        """Share of the time for which the device is busy in batches of the best size, above 1 if it is overloaded.

        None before the first result. Sources of this kind that fit are their number divided by it.
        """
        if self._began_s is None or not self._times:
            return None
        seconds = max(self._done_s - self._began_s, _WINDOW_S)
        return self._seen / seconds * min(mean_s / size for size, (mean_s, _) in self._times.items())

    def priority(self, position: int) -> int:
        """The priority of a source."""
        return self.priorities[position] if self.priorities else 1

    def urgency(self, frame: Frame) -> tuple[int, float]:
        """A key that is lower for frames that go first."""
        return -self.priority(frame.stream), -math.inf if frame.arrived_s is None else frame.arrived_s

    def fits(self, frame: Frame, size: int = 1) -> bool:
        """Whether a frame is ready in time in a batch of this size that is taken now."""
        if frame.arrived_s is None:
            return True
        now = time.monotonic()
        if not self._in_flight and now - self._done_s > _STALE_S:
            self._times.clear()
        return max(now, self._free_s) + self._time_of(size) <= frame.arrived_s + self.max_latency

    def _time_of(self, size: int) -> float:
        """Seconds in which most batches are done, as those of the next known size; the first one has a single frame."""
        if not self._times:
            return 0.0 if size == 1 else math.inf
        known = max((each for each in self._times if each <= size), default=min(self._times))
        mean_s, deviation_s = self._times[known]
        return (mean_s + 2 * deviation_s) * size / known

    def count(self, *, seen: int = 0, dropped: int = 0) -> None:
        """Count frames that came, and of these the dropped ones."""
        began_s, frames, drops = self._window
        self._seen += seen
        self._window = began_s, frames + seen, drops + dropped

    def begin(self, size: int) -> None:
        """Note that a batch was taken."""
        self._in_flight.append(size)
        self._free_s = max(time.monotonic(), self._free_s) + self._time_of(size)

    def learn(self, taken_s: float) -> None:
        """Note that the oldest batch, taken at that time, is done now: in means of times and of their deviations.

        They are weighted as those of round trips in TCP (RFC 6298).
        """
        now, size = time.monotonic(), self._in_flight.popleft()
        spent_s = now - max(taken_s, self._done_s)
        mean_s, deviation_s = self._times.get(size, (spent_s, 0.0))
        deviation_s += (abs(spent_s - mean_s) - deviation_s) / 4
        self._times[size] = mean_s + (spent_s - mean_s) / 8, deviation_s
        self._done_s, self._free_s = now, now + sum(map(self._time_of, self._in_flight))
        self._began_s = taken_s if self._began_s is None else self._began_s

    def judge(self) -> Literal["full", "calm"] | None:
        """At the end of a window, whether too much was dropped in the last two; "calm" if nothing was for a minute."""
        now, (began_s, frames, drops) = time.monotonic(), self._window
        if self.when_full is None or now - began_s < _WINDOW_S:
            return None
        self._window = now, 0, 0
        if drops:
            self._calm_s = now
        was_full, self._is_full = self._is_full, drops > _MOST_DROPPED * frames
        if was_full and self._is_full:
            self._is_full = False
            return "full"
        if now - self._calm_s < _CALM_S:
            return None
        self._calm_s = now
        return "calm"
