"""Counts of lines and zones, as frames carry them to their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Points = tuple[tuple[float, float], ...]
"""Points (x, y) in pixels."""


@dataclass(frozen=True)
class Event:
    """A thing that crossed a line, or came into or left a zone."""

    counter: str
    """Name of the line or zone."""
    direction: Literal["in", "out"]
    """To the left side of the line, looking from its start to its end, or into the zone; or the other way."""
    track_id: int
    """The thing's `Detections.track_id`."""
    class_name: str
    """Name of its class, by its track's vote if there is one."""
    point: tuple[float, float]
    """Middle of its box's bottom edge, (x, y) in pixels."""
    dwell_s: float | None = None
    """Seconds that it was in the zone it leaves; None for a line, on entering, and without a clock."""


@dataclass(frozen=True)
class Count:
    """Counts of a line or zone up to a frame, by class name."""

    name: str
    """Name of the line or zone."""
    points: Points
    """The line's two ends, or the zone's corners."""
    in_by_class: Mapping[str, int]
    """Crossings of a line to its left side; or stays in a zone, those under way included."""
    out_by_class: Mapping[str, int]
    """Crossings the other way; or stays that ended as the thing left the zone, not as it was lost."""
    events: Sequence[Event] = ()
    """What happened in this frame."""
    inside_by_class: Mapping[str, int] | None = None
    """Things in the zone in this frame; None for a line, as the two below."""
    mean_dwell_s: Mapping[str, float] | None = None
    """Mean length of the stays so far, in seconds; empty without a clock."""
    longest_dwell_s: Mapping[str, float] | None = None
    """Length of the longest one so far, in seconds."""

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
    """The sums of `Count.as_dict` for people, with their parts or without: "gate: in 3 (2 car, 1 bus), out 0"."""
    shown = []
    for way in ("in", "out", "inside"):
        if (values := counts.get(way)) is not None:
            parts = ", ".join(f"{number} {each}" for each, number in sorted(values.items(), key=lambda item: -item[1]))
            shown.append(f"{way} {sum(values.values())}{f' ({parts})' if parts and by_class else ''}")
    return f"{name}: {', '.join(shown)}"
