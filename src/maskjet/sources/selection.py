"""Selection of frames of a source: every Nth, from a start, up to a limit."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from maskjet.checks import check_count
from maskjet.errors import InputError, SourceError

_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)s")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+(?:\.\d*)?)")
_TOLERANCE_S = 1e-6  # times are products of floats


class BeyondEndError(SourceError):
    """A source ends before the first selected frame.

    Attributes:
        frames: Number of frames the source has.
    """

    def __init__(self, name: str, start: object, frames: int) -> None:
        plural = "s"[: frames != 1]
        super().__init__(f"start must be before the end of {name!r}, which has {frames} frame{plural}, got {start}.")
        self.frames = frames


@dataclass(frozen=True)
class Selection:
    """Selected frames: those at `start`, `start + every`, ..., before `stop`, at most `limit`."""

    every: int = 1
    """Step between selected frames, in frames."""
    start: int = 0
    """Index of the first selected frame; 0 if `start_s` is set."""
    start_s: float | None = None
    """Time of the first selected frame, in seconds after the source's first frame."""
    limit: int | None = None
    """Largest number of selected frames; None for all."""
    stop: int | None = None
    """Index before which the selected frames end; None for the end of the source."""
    phase: int | None = None
    """Index from which `every` counts, in both directions; None for the first selected frame."""

    @property
    def first(self) -> int:
        """Index of the first selected frame; 0 if `start_s` is set."""
        return self.start if self.phase is None else self.start + (self.phase - self.start) % self.every

    @property
    def starts_late(self) -> bool:
        """Whether frames at the beginning may be left out."""
        return self.start > 0 or self.start_s is not None

    @property
    def shown_start(self) -> str:
        """The start as text, for messages."""
        return str(self.start) if self.start_s is None else f"{self.start_s:g}s"

    def has(self, index: int) -> bool:
        """Whether the frame with this index is selected, ignoring `stop` and the limit."""
        first = self.first
        return index >= first and (index - first) % self.every == 0

    def is_late_enough(self, seconds: float) -> bool:
        """Whether a frame this long after the source's first is at `start_s` or later."""
        return self.start_s is not None and seconds >= self.start_s - _TOLERANCE_S

    def count(self, length: int | None) -> int | None:
        """Number of selected frames in a source of this length; None if the length is unknown."""
        end = length if self.stop is None else self.stop
        if end is None:
            return None
        count = len(range(self.first, end, self.every))
        return count if self.limit is None else min(count, self.limit)

    def within(self, first: int, given: int) -> Selection:
        """Selection for a part that starts at frame `first` of the source, after `given` selected frames."""
        start = self.start - first if first <= self.start else -(first - self.start) % self.every
        return replace(self, start=start, limit=None if self.limit is None else self.limit - given)

    def check_length(self, name: str, length: int | None) -> None:
        """Raise InputError if `start` is a time, and BeyondEndError if it is not below the length of a source."""
        if self.start_s is not None:
            raise InputError(f"start must be a number of frames for {name!r}, whose frames have no times of one clock.")
        if length is not None and self.start >= max(length, 1):
            raise BeyondEndError(name, self.shown_start, length)


EVERYTHING = Selection()
"""Selects all frames."""


def select_frames(every: int = 1, start: int | str = 0, limit: int | None = None) -> Selection:
    """Check the arguments of `open_source` that select frames; raises InputError for others."""
    check_count("every", every)
    if limit is not None:
        check_count("limit", limit)
    selection = Selection(every, limit=limit)
    if isinstance(start, str):
        if start.isascii() and start.isdecimal():
            return replace(selection, start=int(start))
        return replace(selection, start_s=_parse_seconds(start))
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise _wrong_start(start)
    return replace(selection, start=start)


def _parse_seconds(text: str) -> float:
    if match := _SECONDS.fullmatch(text):
        return float(match[1])
    match = _CLOCK.fullmatch(text)
    if match is None or float(match[3]) >= 60 or (match[1] is not None and int(match[2]) >= 60):
        raise _wrong_start(text)
    return int(match[1] or 0) * 3600 + int(match[2]) * 60 + float(match[3])


def _wrong_start(start: object) -> InputError:
    return InputError(
        f"start must be a frame's index from 0, or a time like '12.5s', '1:02' or '1:02:03.5', got {start!r}."
    )
