"""How many live cameras the command holds: delays from sending a frame to its line of JSON, with tracking.

    python -m benchmarks.cameras --streams 64 --size 1080p --processes auto --seconds 180 --out cameras.json
    python -m benchmarks.cameras --streams 64 --size 1080p --processes auto --seconds 180 --kill
    python -m benchmarks.cameras --steps --size 1080p

The streams are sent over loopback in real time by four processes of the same machine, remuxed, not encoded. Lines are
read from a pipe. With --kill a process of the command is killed in the middle. With --steps no command is run: the
steps between a drawn street's detections and its line are timed.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.command import ReportOption, SizeOption, start
from benchmarks.reach_live import sending
from benchmarks.reach_videos import write_live
from benchmarks.tracking_scenes import truth_of
from maskjet import traffic
from maskjet.checks import check_count
from maskjet.cli.options import parse_size, print_result
from maskjet.errors import MaskjetError
from maskjet.host import measuring
from maskjet.host.devices import ask_driver
from maskjet.host.machine import describe_machine
from maskjet.host.tables import shown
from maskjet.host.timing import percentile
from maskjet.outputs.lines import line
from maskjet.sources.frames import Frame
from maskjet.tracking import Tracker

_LINE = re.compile(rb'\{"index":\d+,"time_s":([\d.e-]+),"source":"[^"]*/(\d+)"')
_PATIENCE_S, _SETTLE_S = 120.0, 5.0  # for the first frame of each stream, and after it
_GROUP = 150  # frames of the clip, sent again and again
_DENSITY, _ROUNDS = 1.3, 5  # of the steps' street; times that it is tracked


@dataclass(frozen=True)
class CamerasCost:
    """One run on many streams."""

    streams: int
    """Cameras, side by side."""
    fps: float
    """Frames per second that each sends."""
    processes: str
    """Argument of --processes."""
    options: str
    """Further arguments of maskjet run."""
    seconds: float
    """Time that counts."""
    frames: int
    """Lines in that time."""
    mean_ms: float
    """Mean delay, from sending a frame's packet to reading its line."""
    p50_ms: float
    """Median delay."""
    p95_ms: float
    """95th percentile."""
    p99_ms: float
    """99th percentile."""
    lost: int
    """Frames without a line between a stream's first and last one that count."""
    losing: int
    """Streams that lost frames."""
    restarts: int
    """Processes that were started again."""
    cores: float | None
    """Cores that the command kept busy; None where a process was killed."""
    gpu: str
    """Load of the GPU and its decoder in per cent, as nvidia-smi says; empty without one."""


@dataclass(frozen=True, kw_only=True)
class CamerasReport(measuring.MeasuredReport):
    """Runs on many streams; measurements are `CamerasCost`."""

    measurements: Sequence[CamerasCost]
    size_hw: tuple[int, int]
    """Height and width of frames in pixels."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per run."""
        rows: list[tuple[str, ...]] = [
            (
                "streams",
                "frames/s each",
                "processes",
                "mean, ms",
                "p50",
                "p95",
                "p99",
                "lost",
                "of streams",
                "restarts",
                "cores",
                "GPU",
            )
        ]
        for m in self.measurements:
            delays = (shown(value, 1) for value in (m.mean_ms, m.p50_ms, m.p95_ms, m.p99_ms))
            counts = (str(m.streams), f"{m.fps:g}", m.processes)
            rows.append(
                (*counts, *delays, str(m.lost), str(m.losing), str(m.restarts), shown(m.cores, 1), m.gpu or "-")
            )
        return rows


@dataclass(frozen=True)
class StepCost:
    """A step between a frame's detections and its line."""

    step: str
    """Its function."""
    median_us: float
    """Median time in microseconds."""
    p95_us: float
    """95th percentile."""


@dataclass(frozen=True, kw_only=True)
class StepsReport(measuring.MeasuredReport):
    """Steps in one thread; measurements are `StepCost`."""

    measurements: Sequence[StepCost]
    size_hw: tuple[int, int]
    """Height and width of frames in pixels."""
    detections: float
    """Median number of detections of a frame."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per step."""
        named = [(m.step, shown(m.median_us, 0), shown(m.p95_us, 0)) for m in self.measurements]
        return [(f"{self.detections:g} detections", "median, µs", "p95"), *named]


class Watch:
    """The lines of a run: which frames of each stream came, and how late."""

    def __init__(self, stamps: NDArray[np.float64], fps: float) -> None:
        self._stamps, self._fps = stamps, fps
        self.delays_ms: list[float] = []
        """Of all lines that count."""
        self.seen: list[list[int]] = [[] for _ in stamps]
        """Numbers of the frames that count, by stream."""
        self.begun: set[int] = set()
        """Streams that have given a line."""

    def add(self, line: bytes, *, counts: bool) -> None:
        """Note a line that was read now."""
        found = _LINE.match(line)
        if found is None:
            raise MaskjetError(f"the command printed {line[:200]!r}, which is no line of a stream.")
        stream, number = int(found[2]), round(float(found[1]) * self._fps)
        self.begun.add(stream)
        if counts:
            self.delays_ms.append(1000 * (time.monotonic() - float(self._stamps[stream, number])))
            self.seen[stream].append(number)

    def lost(self) -> list[int]:
        """Frames lost by each stream; what a connection sent before it was opened again does not count."""
        lost = []
        for numbers in self.seen:
            gaps = [after - before - 1 for before, after in pairwise(numbers)]
            lost.append(sum(gap for gap in gaps if gap > 0))
        return lost


def measure(
    streams: int,
    size_hw: tuple[int, int],
    fps: float,
    seconds: float,
    processes: str,
    options: Sequence[str],
    kill: bool,
) -> CamerasCost:
    """Run the command on as many streams, until the time is over."""
    with TemporaryDirectory() as folder:
        clip, video = Path(folder) / "clip.mp4", Path(folder) / "live.flv"
        traffic.write_video(clip, size_hw=size_hw, frames=_GROUP, seed=3)
        write_live(clip, video)
        with sending(video, streams, fps) as (urls, stamps), _running(urls, processes, options) as (process, lines):
            watch, began, deadline, is_killed = Watch(stamps, fps), 0.0, time.monotonic() + _PATIENCE_S, not kill
            busy_s, gpu = 0.0, ""
            for line in lines:
                now = time.monotonic()
                watch.add(line, counts=began > 0 and now > began)
                if not began and len(watch.begun) == streams:
                    began = now + _SETTLE_S
                    deadline = began + seconds
                elif began and not busy_s and now > began:
                    busy_s = _cpu_s(process.pid)
                elif began and not is_killed and now > began + seconds / 2:
                    is_killed = True
                    os.kill(_children(process.pid)[0], signal.SIGKILL)
                    gpu = gpu or _gpu_load()
                if now > deadline:
                    break
            if not began:
                raise MaskjetError(f"{streams - len(watch.begun)} streams gave no frame within {_PATIENCE_S:.0f} s.")
            cores, gpu = None if kill else (_cpu_s(process.pid) - busy_s) / seconds, gpu or _gpu_load()
            process.send_signal(signal.SIGINT)
            for _ in lines:
                pass
            summary = process.stderr.read().decode() if process.stderr is not None else ""
    p50, p95, p99 = (percentile(watch.delays_ms, share) for share in (0.5, 0.95, 0.99))
    lost, restarts = watch.lost(), re.search(r'"restarts": (\d+)', summary)
    return CamerasCost(
        streams,
        fps,
        processes,
        " ".join(options),
        seconds,
        len(watch.delays_ms),
        statistics.fmean(watch.delays_ms),
        p50,
        p95,
        p99,
        sum(lost),
        sum(map(bool, lost)),
        int(restarts[1]) if restarts else 0,
        cores,
        gpu,
    )


def time_steps(size_hw: tuple[int, int]) -> StepsReport:
    """Track a drawn street from its exact masks, and write its lines."""
    street = traffic.Street(seed=3, size_hw=size_hw, density=_DENSITY)
    things = [truth_of(0.0, street.frame(index)).things for index in range(_GROUP)]
    given = [replace(each, track_id=None, track_class_id=None) for each in things]
    spent_us: dict[str, list[float]] = {"Tracker.update": [], "Detections.as_dict": [], "line, with as_dict": []}
    nothing = np.empty((0, 0, 3), np.uint8)  # lines have no pixels
    for _ in range(_ROUNDS):
        tracker = Tracker()
        for index, found in enumerate(given):
            began = time.perf_counter()
            tracked = tracker.update(found, index / 30)
            moments = [began, time.perf_counter()]
            tracked.as_dict()
            moments.append(time.perf_counter())
            line(Frame(index, index / 30, nothing, "rtsp://gate/1", f"rtsp://gate/1#{index}"), tracked)
            moments.append(time.perf_counter())
            for name, (start_s, end_s) in zip(spent_us, pairwise(moments), strict=True):
                spent_us[name].append(1e6 * (end_s - start_s))
    costs = [StepCost(name, percentile(each, 0.5), percentile(each, 0.95)) for name, each in spent_us.items()]
    detections = statistics.median(map(len, given))
    return StepsReport(describe_machine(), measurements=costs, size_hw=size_hw, detections=detections)


@contextmanager
def _running(
    urls: Sequence[str], processes: str, options: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The command, and its lines."""
    command = [sys.executable, "-m", "maskjet", "run", *urls, "--processes", processes, "--track", "-o", "-", "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _cpu_s(pid: int) -> float:
    """CPU time of a process and those that it started, in seconds."""
    total = 0.0
    with suppress(OSError):
        fields: Any = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total + sum(map(_cpu_s, _children(pid)))


def _gpu_load() -> str:
    return ask_driver("--query-gpu=utilization.gpu,utilization.decoder", "--format=csv,noheader,nounits").strip()


def main(
    streams: Annotated[int, typer.Option(help="Cameras.")] = 4,
    size: SizeOption = "640x360",
    fps: Annotated[float, typer.Option(help="Frames per second of each camera.")] = 15.0,
    seconds: Annotated[float, typer.Option(help="Time that counts.")] = 30.0,
    processes: Annotated[str, typer.Option(help="As of maskjet run.")] = "1",
    kill: Annotated[bool, typer.Option("--kill", help="Kill a process in the middle.")] = False,
    steps: Annotated[bool, typer.Option("--steps", help="Time the steps between detections and line instead.")] = False,
    options: Annotated[str, typer.Option(help="Further arguments of maskjet run, in one word.")] = "",
    out: ReportOption = None,
) -> None:
    """Time the command on many live cameras."""
    check_count("streams", streams)
    size_hw = parse_size(size)
    report: measuring.MeasuredReport
    if steps:
        report = time_steps(size_hw)
    else:
        cost = measure(streams, size_hw, fps, seconds, processes, options.split(), kill)
        report = CamerasReport(describe_machine(), measurements=[cost], size_hw=size_hw)
    report.write(out)
    print_result(report, to_stdout=True)


if __name__ == "__main__":
    start(main)
