"""Deadlines of live frames: which goes first, which is dropped, and which source gives way where a machine is full."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Literal, get_args

from maskjet.checks import check_choice, check_count
from maskjet.errors import InputError
from maskjet.sources.source import Frame

WhenFull = Literal["slower", "refuse"]
_RISE, _FALL = 0.5, 0.05  # weights of a batch that took longer, or shorter, than those before
_FORGOTTEN = 0.95  # of the expected time where it lets a frame be dropped, so that a single slow batch is forgotten
_WINDOW_S = 2.0  # time over which drops are counted
_MOST_DROPPED = 0.01  # share of a window's frames; more break the promise
_CALM_S = 60.0  # time without drops after which a source gets its rate back


class Deadlines:
    """A promise for live sources: each result within `max_latency` seconds of its frame's packet, or none.

    The time runs from the demuxer's handing out the packet to the result's being handed over. Frames go in the order of
    their deadlines. One that can't be ready in time, as batches take now, is dropped before the network sees it, and
    counted in `Source.frames_dropped`. For one stream; whole frames alone, all of them detected on.

    Args:
        max_latency: Seconds, above 0.
        priorities: A whole number from 1 for each source, or none; frames of a higher one go first.
        when_full: What happens where more than 1 % of the frames of two seconds are dropped: "slower" takes every
            second frame of a source, then every fourth, up to the 16th, and twice as many again after a minute without
            drops; "refuse" ends it with a SourceError. It is the last one of those of the lowest priority. None drops
            frames of all.

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
        self._expected_s = 0.0  # from taking a batch to its results
        self._costs: dict[int, float] = {}  # seconds per frame by size of the batch, while the device was busy
        self._done_s = 0.0  # time of the last results
        self._began_s: float | None = None
        self._seen, self._window = 0, (0.0, 0, 0)  # frames so far; a window's begin, its frames and drops
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
        if self._began_s is None or not self._costs:
            return None
        return self._seen / max(self._done_s - self._began_s, _WINDOW_S) * min(self._costs.values())

    def urgency(self, frame: Frame) -> tuple[int, float]:
        """A key that is lower for frames that go first."""
        priority = self.priorities[frame.stream] if self.priorities else 1
        return -priority, -math.inf if frame.arrived_s is None else frame.arrived_s

    def is_hopeless(self, frame: Frame) -> bool:
        """Whether a frame can't be ready in time; it is then to be dropped."""
        if frame.arrived_s is None or time.monotonic() + self._expected_s <= frame.arrived_s + self.max_latency:
            return False
        self._expected_s *= _FORGOTTEN
        return True

    def count(self, *, seen: int = 0, dropped: int = 0) -> None:
        """Count frames that came, and of these the dropped ones."""
        began_s, frames, drops = self._window
        self._seen += seen
        self._window = began_s, frames + seen, drops + dropped

    def learn(self, frames: int, taken_s: float) -> None:
        """Learn from a batch that is done now how long they take."""
        now = time.monotonic()
        self._began_s = taken_s if self._began_s is None else self._began_s
        more_s = now - taken_s - self._expected_s
        self._expected_s += more_s * (_RISE if more_s > 0 else _FALL)
        cost_s = (now - max(taken_s, self._done_s)) / frames
        self._costs[frames] = cost_s + (1 - _FALL) * (self._costs.get(frames, cost_s) - cost_s)
        self._done_s = now

    def judge(self) -> Literal["full", "calm"] | None:
        """At the end of a window, whether too much was dropped in it; "calm" if nothing was for a minute."""
        now, (began_s, frames, drops) = time.monotonic(), self._window
        if self.when_full is None or now - began_s < _WINDOW_S:
            return None
        self._window = now, 0, 0
        if drops:
            self._calm_s = now
        if began_s and drops > _MOST_DROPPED * frames:
            return "full"
        if now - self._calm_s < _CALM_S:
            return None
        self._calm_s = now
        return "calm"
