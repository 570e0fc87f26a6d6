"""Measure the speed of a model on a source, on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from maskjet.checks import check_count
from maskjet.errors import InputError, SourceError
from maskjet.host import process
from maskjet.host.machine import describe_machine
from maskjet.host.measuring import MeasuredReport
from maskjet.host.profiling import profile
from maskjet.host.tables import shown
from maskjet.host.timing import percentile, play, rotate
from maskjet.model import Model
from maskjet.sources.frames import open_source
from maskjet.sources.images import Image

DEPTHS = (1, 2, 4)
"""Numbers of batches in flight to measure."""
_RUNS = 3  # runs per depth, of which the median counts
_BUDGET_S = 2.0  # seconds per run
_WARM_UP = 12  # frames; each of four slots captures its graph at its second frame
_PROFILED = 16  # frames to profile
_IN_MEMORY = 480  # frames per run from memory
_MOST_BYTES = 2**30  # bytes of frames kept in memory


@dataclass(frozen=True)
class Rate:
    """Frame rates at one depth."""

    depth: int
    """Number of batches in flight."""
    fps: float
    """Frames per second with decoding, in the median run."""
    memory_fps: float
    """Frames per second from memory, without decoding, in the median run."""


@dataclass(frozen=True, kw_only=True)
class SourceReport(MeasuredReport):
    """Rates, latency and GPU work of a source with a model."""

    measurements: Sequence[Rate]
    """One per depth."""
    source: str
    """Name of the source."""
    size_hw: tuple[int, int]
    """(height, width) of the source's first frame, in pixels."""
    frames: int
    """Number of frames kept in memory."""
    detections: float
    """Detections per frame, on average."""
    model: Mapping[str, Any]
    """`Model.report` as a dictionary."""
    p50_ms: float
    """Median latency at depth 1, from a frame in memory to its detections."""
    p99_ms: float
    """99th percentile of the latency at depth 1."""
    launches: float | None
    """Kernels and graphs that the host launches per frame; None on a CPU."""
    waits: float | None
    """Blocking CUDA calls per frame, without polling for a graph's end; None on a CPU."""
    decode_ms: float
    """Time to read and decode a frame, which overlaps with everything else."""
    copy_ms: float | None
    """Time of copies to, from and within the GPU, per frame; None on a CPU."""
    gpu_ms: float | None
    """Time of GPU kernels, per frame; None on a CPU."""
    host_ms: float
    """Rest of the median latency in ms: CPU work, launches, and detecting the GPU's end."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per depth."""
        rates = [(str(m.depth), f"{m.fps:.1f}", f"{m.memory_fps:.1f}") for m in self.measurements]
        return [("depth", "frames/s with decoding", "frames/s from memory"), *rates]

    def __str__(self) -> str:
        height, width = self.size_hw
        copy, gpu = shown(self.copy_ms, 2), shown(self.gpu_ms, 2)
        lines = [
            f"{self.source}, {width} × {height}, {self.detections:.1f} detections per frame",
            "{model} on {device}, {precision}, {engine}".format(**self.model),
            f"latency at depth 1, ms: p50 {self.p50_ms:.2f}, p99 {self.p99_ms:.2f}",
            f"per frame, ms: decode {self.decode_ms:.2f}, copy {copy}, GPU {gpu}, host {self.host_ms:.2f}",
            f"per frame: {shown(self.launches, 1)} launches, {shown(self.waits, 1)} waits",
        ]
        return "\n".join([*lines, super().__str__()])


def measure_source(
    source: str, model: Model, *, frames: int = 120, on_progress: Callable[[], object] = lambda: None
) -> SourceReport:
    """Run a model on a source, with decoding and from memory, and measure where the time goes.

    The source is opened several times, and up to so many frames, or 1 GiB of them, are rotated through in memory.

    Raises:
        InputError: frames is less than 1, or the source is live.
        SourceError: The source can't be opened, or has no frame.
    """
    check_count("frames", frames)
    name, images, decode_ms = _decode(source, frames)
    with process.garbage_frozen():  # as `maskjet run` does
        play(model.stream(rotate(images, _WARM_UP), depth=max(DEPTHS)))
        rates = []
        for depth in DEPTHS:
            rates.append(_rate(source, images, model, depth))
            on_progress()
        times_ms, counts = _time_frames(model, images)
        work = _profile(model, images, statistics.median(times_ms))  # last: the profiler slows later launches
    return SourceReport(
        machine=describe_machine(),
        measurements=rates,
        notes=_explain(model),
        source=name,
        size_hw=(images[0].shape[0], images[0].shape[1]),
        frames=len(images),
        detections=round(statistics.mean(counts), 2),
        model=model.report().as_dict(),
        p50_ms=round(statistics.median(times_ms), 3),
        p99_ms=round(percentile(times_ms, 0.99), 3),
        decode_ms=decode_ms,
        **work,
    )


def _decode(source: str, most: int) -> tuple[str, list[Image], float]:
    """Decode the first frames; returns the source's name, the frames, and milliseconds per frame."""
    images: list[Image] = []
    kept = 0  # bytes in `images`
    with open_source(source) as opened:
        if opened.is_live:
            raise InputError(f"source must be one that can be read again, {opened.name!r} is live.")
        start = time.perf_counter()
        for frame in islice(opened, most):
            images.append(frame.image)
            kept += frame.image.nbytes
            if kept >= _MOST_BYTES:
                break
        seconds = time.perf_counter() - start
    if not images:
        raise SourceError(f"source must have a frame that can be decoded, {opened.name!r} has none.")
    return opened.name, images, round(1000 * seconds / len(images), 3)


def _rate(source: str, images: Sequence[Image], model: Model, depth: int) -> Rate:
    """Median frame rates with decoding and from memory, from alternating runs."""
    fps, memory_fps = [], []
    for _ in range(_RUNS):
        fps.append(play(model.stream(source, depth=depth), _BUDGET_S)[1])
        memory_fps.append(play(model.stream(rotate(images, _IN_MEMORY), depth=depth), _BUDGET_S)[1])
    return Rate(depth, round(statistics.median(fps), 2), round(statistics.median(memory_fps), 2))


def _time_frames(model: Model, images: Sequence[Image]) -> tuple[list[float], list[int]]:
    """Latency in milliseconds and number of detections of each frame."""
    times_ms: list[float] = []
    counts: list[int] = []
    for image in rotate(images, _IN_MEMORY):
        start = time.perf_counter()
        found = model.predict(image)
        times_ms.append(1000 * (time.perf_counter() - start))
        counts.append(len(found))
        if sum(times_ms) > 1000 * _BUDGET_S:
            break
    return times_ms, counts


def _profile(model: Model, images: Sequence[Image], latency_ms: float) -> dict[str, Any]:
    """Profile some frames; returns the profile fields of `SourceReport`."""
    device = model.config.resolve_device()
    work = profile(lambda: play(model.stream(rotate(images, _PROFILED), depth=1)), device, items=_PROFILED)
    if work is None:
        return {"launches": None, "waits": None, "copy_ms": None, "gpu_ms": None, "host_ms": round(latency_ms, 3)}
    times = {"copy_ms": round(work.copy_us / 1000, 3), "gpu_ms": round(work.gpu_us / 1000, 3)}
    host_ms = round(max(latency_ms - sum(times.values()), 0.0), 3)
    return {"launches": work.launches, "waits": work.waits, **times, "host_ms": host_ms}


def _explain(model: Model) -> list[str]:
    """Notes on figures that are not meaningful for this model."""
    device, engine = model.config.resolve_device().type, model.report().engine
    on_cpu = "On a CPU there are no copies, launches or waits to count: all of the latency is the host's."
    no_graph = "Without graphs frames do not overlap: depth is how far ahead they are decoded."
    return [on_cpu] * (device == "cpu") + [no_graph] * engine.startswith("step by step")
