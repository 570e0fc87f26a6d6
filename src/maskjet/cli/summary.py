"""The summary of a run: readable counts on stderr, or JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from maskjet.cli.options import print_result
from maskjet.host.printing import printable

if TYPE_CHECKING:
    from maskjet.sources.metering import SourceState


@dataclass
class SourceSummary:
    """Statistics of one source of a run."""

    source: str
    """Name of the source."""
    state: Literal["waiting", "running", "done", "stopped", "failed"] = "waiting"
    """"stopped" by a signal or by closing the window; "waiting" if the run ended before its turn came."""
    frames: int = 0
    """Frames detected on and written."""
    detections: int = 0
    """Detections in all written frames of the source."""
    error: str | None = None
    """Message of the error that ended the source, if any."""
    is_live: bool = False
    """Whether the source is a camera or an endless stream."""
    missed: int = 0
    """Frames of a live source that came while its process was started again; an estimate."""
    counts: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Counts of lines and zones by name: the fields of `Count.as_dict`."""
    reading: SourceState | None = None
    """State of the source at the end of the run; None if it was not opened."""

    def __str__(self) -> str:
        counts = f"{_count(self.frames, 'frame')}, {_count(self.detections, 'detection')}"
        if self.is_live:
            counts += f"; {self.reading}"
            counts += f"; about {_count(self.missed, 'frame')} missed" if self.missed else ""
        ends = {"done": counts, "waiting": "not begun"}
        end = ends.get(self.state, f"{self.state} after {counts}" if self.frames else self.state)
        return f"{printable(self.source)}: {end}"


@dataclass
class Summary:
    """Statistics of a run so far."""

    frames: int = 0
    """Frames detected on and written."""
    detections: int = 0
    """Detections in all written frames."""
    left_out: int = 0
    """Detections not written because their box or confidence is not finite."""
    lost_events: int = 0
    """Events of lines and zones that could not be delivered to a webhook or topic."""
    bad_frames: list[str] = field(default_factory=list)
    """One line per frame that could not be decoded."""
    dropped: int = 0
    """Frames skipped because newer ones had arrived, or as they could not be ready in time."""
    capacity: int | None = None
    """Sources of this kind that fit, at what a frame cost here; None without --max-latency."""
    restarts: int = 0
    """Processes that died and were started again."""
    seconds: float = 0.0
    """Seconds from the request for the first frame to the last write, without the time to load the model."""
    fps: float = 0.0
    """Frames per second over `seconds`, decoding and writing included."""
    outputs: Sequence[str] = ()
    """Paths of the outputs, with ".partial" in their names if an error ended the run."""
    replaced: Sequence[str] = ()
    """Outputs that existed before: files, and non-empty folders."""
    sources: list[SourceSummary] = field(default_factory=list)
    """The sources, in their order."""
    is_interrupted: bool = False
    """Whether a signal ended the run early."""
    error: str | None = None
    """Message of the error that ended the run early, if any."""

    @property
    def failed(self) -> int:
        """Number of sources that failed."""
        return sum(source.state == "failed" for source in self.sources)

    def __str__(self) -> str:
        from maskjet.sources.counts import describe_count  # which needs NumPy

        state = "failed" if self.error is not None else "interrupted" if self.is_interrupted else "done"
        several = len(self.sources) > 1
        if several and self.failed and state == "done":
            state = f"done; {self.failed} of {len(self.sources)} sources failed"
        lines = [
            f"{_count(self.frames, 'frame')}, {_count(self.detections, 'detection')} in {self.seconds:.1f} s: "
            f"{self.fps:.1f} frames/s"
        ]
        if several or any(source.is_live for source in self.sources):
            lines += [f"  {source}" for source in self.sources]
        for source in self.sources:
            for name, counts in source.counts.items():
                text = describe_count(name, counts, by_class=True)
                lines.append(printable(f"  {source.source}: {text}" if several else f"  {text}"))
        lines += [f"  {_count(self.dropped, 'frame')} dropped, newer ones had come"] if self.dropped else []
        lines += [] if self.capacity is None else [f"  {len(self.sources)} of {self.capacity} sources of this kind"]
        left_out = f"  {_count(self.left_out, 'detection')} left out, for boxes or confidences that are not finite"
        lines += [left_out] if self.left_out else []
        lines += [f"  {_count(self.lost_events, 'event')} lost, not delivered"] if self.lost_events else []
        lines += [f"  {_count(self.restarts, 'process', 'es')} started again"] if self.restarts else []
        lines += [f"  bad frame: {printable(reason)}" for reason in self.bad_frames]
        for output in self.outputs:
            older = "which had files" if Path(output).is_dir() else "replacing an older file"
            lines.append(f"  wrote {printable(output)}{f', {older}' if output in self.replaced else ''}")
        return "\n".join([state, *lines])

    def show(self, *, as_json: bool, stdout_is_taken: bool) -> None:
        """Print text on stderr, or JSON: on stdout, or in one line on stderr if stdout has the results."""
        if not as_json:
            print_result(self)
        elif stdout_is_taken:
            print_result(json.dumps(asdict(self), allow_nan=False))
        else:
            print_result(asdict(self))


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"
