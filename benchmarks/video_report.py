"""Measurements of the video benchmark, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maskjet.host import measuring
from maskjet.host.tables import shown


@dataclass(frozen=True)
class VideoCost:
    """Speed of one contender on one video, and the agreement of its detections."""

    name: str
    """Name of the rung or the peer."""
    what: str
    """One line that describes the contender."""
    precision: str
    """Precision of the network; "-" for a peer."""
    size_hw: tuple[int, int]
    """(height, width) of the frames, in pixels."""
    detections: float
    """Detections per frame."""
    matched: float
    """Share of its detections and the first contender's that are matched with each other, 0..1."""
    max_confidence_difference: float
    """Largest confidence difference of a matched pair."""
    fps: float | None
    """Frames per second from the file, decoding included, median of the runs; None for several sources."""
    memory_fps: float
    """Frames per second from decoded frames in memory, median of the runs."""
    p50_ms: float | None
    """Median time from a frame in memory to its detections; None where frames overlap."""
    p99_ms: float | None
    """99th percentile of the time from a frame in memory to its detections; None where frames overlap."""
    replay_ms: float | None
    """Median time of one replay of a frame's CUDA graph; None without graphs, and where frames overlap."""
    launches: float | None
    """Kernels and graphs that the host launches per frame; None without a GPU."""
    copies: float | None
    """Copies and fills per frame that the host launches outside graphs; None without a GPU."""
    waits: float | None
    """Blocking calls per frame, without the one event that our graphs poll; None without a GPU."""
    gpu_busy: float | None
    """Share of the time in which the GPU is busy, 0..1, profiled from memory; None without a GPU."""


@dataclass(frozen=True)
class OutputCost:
    """Speed of the last rung while it writes outputs."""

    name: str
    """Name of the rung."""
    size_hw: tuple[int, int]
    """(height, width) of the frames, in pixels."""
    output: str
    """A key of `video.OUTPUTS`."""
    fps: float
    """Frames per second, decoding and writing included, median of the runs."""


@dataclass(frozen=True)
class VideoReport(measuring.MeasuredReport):
    """All measurements of a run."""

    measurements: Sequence[VideoCost]
    """Measurements of all contenders, ordered by size and contender."""
    outputs: Sequence[OutputCost] = ()
    """Measurements with outputs written, ordered by size and output."""
    model: str = ""
    """Name of the model."""
    frames: int = 0
    """Frames per video."""
    runs: int = 0
    """Runs of each contender on each video."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        header = (
            *(
                "size",
                "",
                "frames/s",
                "in memory",
                "p50 ms",
                "p99 ms",
                "graph ms",
                "launches",
                "copies",
                "waits",
                "GPU busy",
            ),
            *("found", "matched", "Δconf"),
        )
        return [header, *map(_row, self.measurements)]

    def __str__(self) -> str:
        written = [f"{o.name}, {_size(o.size_hw)}, {o.output}: {o.fps:.1f} frames/s" for o in self.outputs]
        return "\n".join([super().__str__(), *written])


def _size(size_hw: tuple[int, int]) -> str:
    return f"{size_hw[1]} × {size_hw[0]}"


def _row(m: VideoCost) -> tuple[str, ...]:
    return (
        *(_size(m.size_hw), m.name, shown(m.fps, 1), shown(m.memory_fps, 1)),
        *(shown(m.p50_ms, 2), shown(m.p99_ms, 2), shown(m.replay_ms, 2)),
        *(shown(m.launches, 1), shown(m.copies, 1), shown(m.waits, 1)),
        "-" if m.gpu_busy is None else f"{m.gpu_busy:.0%}",
        *(shown(m.detections, 1), f"{m.matched:.1%}", f"{m.max_confidence_difference:.1e}"),
    )
