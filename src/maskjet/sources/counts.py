"""Counts of lines and zones, passed with frames to the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Points = tuple[tuple[float, float], ...]
"""Points (x, y) in pixels."""


@dataclass(frozen=True)
class Event:
    """A tracked instance crossed a line, or entered or left a zone."""

    counter: str
    """Name of the line or zone."""
    direction: Literal["in", "out"]
    """"in": to the left of the line, seen from start to end, or into the zone; "out": the other way."""
    track_id: int
    """The instance's `Detections.track_id`."""
    class_name: str
    """Name of the instance's class, by its track's vote if there is one."""
    point: tuple[float, float]
    """Middle of the bottom edge of the instance's box, (x, y) in pixels."""
    dwell_s: float | None = None
    """Dwell time in the zone on leaving, in seconds; None for a line, on entering, and without a clock."""


@dataclass(frozen=True)
class Count:
    """Counts of a line or zone up to a frame, by class name."""

    name: str
    """Name of the line or zone."""
    points: Points
    """The line's two ends, or the zone's corners."""
    in_by_class: Mapping[str, int]
    """Crossings of a line to its left side, or entries into a zone."""
    out_by_class: Mapping[str, int]
    """Crossings the other way, or exits from a zone; instances lost inside are not counted."""
    events: Sequence[Event] = ()
    """Crossings, entries and exits in this frame."""
    inside_by_class: Mapping[str, int] | None = None
    """Instances inside the zone in this frame; None for a line."""
    mean_dwell_s: Mapping[str, float] | None = None
    """Mean dwell time so far, in seconds; empty without a clock, None for a line."""
    longest_dwell_s: Mapping[str, float] | None = None
    """Longest dwell time so far, in seconds; empty without a clock, None for a line."""

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Counts in JSON types: in and out, of a zone also inside, mean_dwell_s and longest_dwell_s, by class name."""
        dwell = {"mean_dwell_s": self.mean_dwell_s, "longest_dwell_s": self.longest_dwell_s}
        fields = {"in": self.in_by_class, "out": self.out_by_class, "inside": self.inside_by_class, **dwell}
        return {
            name: {key: round(value, 3) for key, value in values.items()}
            for name, values in fields.items()
            if values is not None
        }

    def __str__(self) -> str:
        return describe_count(self.name, self.as_dict(), by_class=True)


def describe_count(name: str, counts: Mapping[str, Mapping[str, Any]], *, by_class: bool) -> str:
    """Format the sums of `Count.as_dict`, by class or not: "gate: in 3 (2 car, 1 bus), out 0"."""
    shown = []
    for way in ("in", "out", "inside"):
        if (values := counts.get(way)) is not None:
            parts = ", ".join(f"{number} {each}" for each, number in sorted(values.items(), key=lambda item: -item[1]))
            shown.append(f"{way} {sum(values.values())}{f' ({parts})' if parts and by_class else ''}")
    return f"{name}: {', '.join(shown)}"
