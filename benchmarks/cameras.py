"""How many live cameras the command holds: delays from sending a frame to its line of JSON, with tracking.

    python -m benchmarks.cameras --streams 64 --size 1080p --fps 30 --processes auto --seconds 180 --out cameras.json
    python -m benchmarks.cameras --streams 64 --size 1080p --fps 30 --processes auto --seconds 180 --troubled 6 --kill
    python -m benchmarks.cameras --steps --size 1080p

The streams are sent over loopback in real time by four processes of the same machine, remuxed, not encoded. Lines are
read from a pipe. With --troubled further cameras fall silent, come back broken, are away, and come back, in turns of 45
seconds. With --kill a process of the command is killed in the middle. With --steps no command is run: the steps between
a drawn street's detections and its line are timed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.command import ReportOption, SizeOption, start
from benchmarks.reach_live import sending
from benchmarks.reach_videos import write_live
from benchmarks.serve import draw_images, plant
from benchmarks.tracking_scenes import truth_of
from maskjet import traffic
from maskjet.checks import check_count
from maskjet.cli.options import ModelOption, parse_size, print_result
from maskjet.errors import MaskjetError
from maskjet.host import measuring
from maskjet.host.devices import ask_driver
from maskjet.host.machine import describe_machine
from maskjet.host.tables import shown
from maskjet.host.timing import percentile
from maskjet.outputs.lines import line
from maskjet.sources.frames import Frame
from maskjet.spec import SPECS
from maskjet.tracking import Tracker

_LINE = re.compile(rb'\{"index":\d+,"time_s":([\d.e-]+|null),"source":"[^"]*/(\d+)"')
_PATIENCE_S = 120.0  # for the first frame of each stream
_SETTLE_S = 15.0  # after it, until what came during the start is worked off
_GROUP = 150  # frames of the clip, sent again and again
_BIT_RATE = 8_000_000  # of 1080p, as cameras have
_AWAY_S = 5.0  # without a line, after which a camera has come back
_LOAD_S = 2.0  # between two readings of the GPU's load
_DRAWN = 8  # images on which a network is planted
_DENSITY, _ROUNDS = 1.3, 5  # of the steps' street; times that it is tracked


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is run."""

    model: str
    """Argument of --model."""
    streams: int
    """Cameras, side by side."""
    troubled: int
    """Further cameras, which fall silent and come back broken; no measurement counts them, but `returns`."""
    protocol: str
    """rtsp, or http for FLV, whose frames are complete one frame earlier."""
    fps: float
    """Frames per second that each sends."""
    processes: str
    """Argument of --processes."""
    options: str
    """Further arguments of maskjet run."""
    seconds: float
    """Time that counts."""
    kill: bool
    """Whether a process of the command is killed in the middle."""


@dataclass(frozen=True, kw_only=True)
class CamerasCost(Setting):
    """One run on many streams."""

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
    longest_s: float
    """Longest time without a line of a stream, as while its process is started again."""
    returns: int
    """Times that a camera in trouble gave lines again, after five seconds without."""
    restarts: int
    """Processes that were started again."""
    promise_p99_ms: float
    """99th percentile from the demuxer's packet to the result, as the command says, of the latest camera."""
    cores: float | None
    """Cores that the command kept busy; None where a process was killed."""
    gpu: float | None
    """Mean load of the GPU in per cent, as nvidia-smi says; None without one."""
    nvdec: float | None
    """The same of its decoder."""


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
                "model",
                "streams",
                "in trouble",
                "frames/s each",
                "processes",
                "mean, ms",
                "p50",
                "p95",
                "p99",
                "lost",
                "of streams",
                "longest gap, s",
                "returns",
                "restarts",
                "packet to result",
                "cores",
                "GPU, %",
                "NVDEC, %",
            )
        ]
        for m in self.measurements:
            delays = (shown(value, 1) for value in (m.mean_ms, m.p50_ms, m.p95_ms, m.p99_ms))
            counts = (m.model, str(m.streams), str(m.troubled), f"{m.fps:g}", m.processes)
            found = (str(m.lost), str(m.losing), shown(m.longest_s, 1), str(m.returns), str(m.restarts))
            loads = (shown(m.promise_p99_ms, 1), shown(m.cores, 1), shown(m.gpu, 0), shown(m.nvdec, 0))
            rows.append((*counts, *delays, *found, *loads))
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
        """Streams that have given a line, without those in trouble."""
        self.returns = 0
        """Times that a stream in trouble came back."""
        self.longest_s = 0.0
        """Longest time between two lines of a stream that count."""
        self._last_s: dict[int, float] = {}  # times of the last lines

    def add(self, line: bytes, *, counts: bool) -> None:
        """Note a line that was read now."""
        found = _LINE.match(line)
        if found is None:
            raise MaskjetError(f"the command printed {line[:200]!r}, which is no line of a stream.")
        now, stream = time.monotonic(), int(found[2])
        since_s, self._last_s[stream] = now - self._last_s.get(stream, now), now
        if stream >= len(self.seen):
            self.returns += since_s > _AWAY_S
            return
        self.begun.add(stream)
        self.longest_s = max(self.longest_s, since_s if counts else 0)
        if counts and found[1] != b"null":  # the first frame over RTSP
            number = round(float(found[1]) * self._fps)
            self.delays_ms.append(1000 * (now - float(self._stamps[stream, number])))
            self.seen[stream].append(number)

    def lost(self) -> list[int]:
        """Frames lost by each stream; what a connection sent before it was opened again does not count."""
        lost = []
        for numbers in self.seen:
            gaps = [after - before - 1 for before, after in pairwise(numbers)]
            lost.append(sum(gap for gap in gaps if gap > 0))
        return lost


def measure(setting: Setting, video: Path, model: Sequence[str]) -> CamerasCost:
    """Run the command on many streams of a video, with the arguments for its model, until the time is over."""
    streams, seconds = setting.streams, setting.seconds
    longest_s = _PATIENCE_S + _SETTLE_S + seconds + 10
    with ExitStack() as stack:
        urls, stamps = stack.enter_context(
            sending(
                video,
                streams,
                setting.fps,
                longest_s=longest_s,
                protocol=setting.protocol,
                troubled=setting.troubled,
            )
        )
        arguments = [*urls, *model, "--processes", setting.processes, *setting.options.split()]
        process, lines, told = stack.enter_context(_running(arguments))
        watch, began, deadline = Watch(stamps, setting.fps), 0.0, time.monotonic() + _PATIENCE_S
        is_killed, busy_s, loads = not setting.kill, 0.0, stack.enter_context(_watching_load())
        for line in lines:
            now = time.monotonic()
            watch.add(line, counts=began > 0 and now > began)
            if not began and len(watch.begun) == streams:
                began = now + _SETTLE_S
                deadline = began + seconds
            elif began and not busy_s and now > began:
                busy_s = _cpu_s(process.pid)
                loads.clear()
            elif began and not is_killed and now > began + seconds / 2:
                is_killed = True
                os.kill(_children(process.pid)[0], signal.SIGKILL)
            if now > deadline:
                break
        cores, read = None if setting.kill else (_cpu_s(process.pid) - busy_s) / seconds, [*loads]
        process.send_signal(signal.SIGINT)
        for _ in lines:
            pass
        told.seek(0)
        text = told.read().decode()
    if not began:
        away = streams - len(watch.begun)
        raise MaskjetError(f"{away} streams gave no frame within {_PATIENCE_S:.0f} s. It said:\n{text[-2000:]}")
    summary = json.loads(text[("\n" + text).index("\n{") :])  # after warnings
    states = [each["reading"] for each in summary["sources"][:streams]]
    p50, p95, p99 = (percentile(watch.delays_ms, share) for share in (0.5, 0.95, 0.99))
    lost = watch.lost()
    return CamerasCost(
        **asdict(setting),
        frames=len(watch.delays_ms),
        mean_ms=statistics.fmean(watch.delays_ms),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        lost=sum(lost),
        losing=sum(map(bool, lost)),
        longest_s=watch.longest_s,
        returns=watch.returns,
        restarts=summary["restarts"],
        promise_p99_ms=1000 * max(state["latency_s"] for state in states if state),
        cores=cores,
        gpu=statistics.fmean(gpu for gpu, _ in read) if read else None,
        nvdec=statistics.fmean(nvdec for _, nvdec in read) if read else None,
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
def _running(arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]]:
    """The command, its lines, and a file of what it says."""
    command = [sys.executable, "-m", "maskjet", "run", *arguments, "--track", "-o", "-", "--json"]
    with TemporaryFile() as told, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout, told
        finally:
            process.kill()


@contextmanager
def _watching_load() -> Iterator[list[tuple[float, float]]]:
    """Loads of the GPU and its decoder in per cent, one every two seconds; none without a GPU."""
    loads: list[tuple[float, float]] = []
    over = threading.Event()

    def watch() -> None:
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        query = (f"--id={chosen}", "--query-gpu=utilization.gpu,utilization.decoder", "--format=csv,noheader,nounits")
        while not over.wait(_LOAD_S) and (told := ask_driver(*query).split(",")) != [""]:
            loads.append((float(told[0]), float(told[1])))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield loads
    finally:
        over.set()
        thread.join()


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


def main(
    model: ModelOption = "demo",
    streams: Annotated[list[int], typer.Option(help="Cameras; repeatable.")] = [4],  # noqa: B006
    troubled: Annotated[int, typer.Option(help="Further cameras, in trouble.")] = 0,
    protocol: Annotated[str, typer.Option(help="rtsp, or http for FLV.")] = "rtsp",
    size: SizeOption = "640x360",
    fps: Annotated[float, typer.Option(help="Frames per second of each camera.")] = 15.0,
    seconds: Annotated[float, typer.Option(help="Time that counts.")] = 30.0,
    processes: Annotated[list[str], typer.Option(help="As of maskjet run; repeatable.")] = ["1"],  # noqa: B006
    kill: Annotated[bool, typer.Option("--kill", help="Kill a process in the middle.")] = False,
    steps: Annotated[bool, typer.Option("--steps", help="Time the steps between detections and line instead.")] = False,
    options: Annotated[str, typer.Option(help="Further arguments of maskjet run, in one word.")] = "",
    out: ReportOption = None,
) -> None:
    """Time the command on many live cameras."""
    size_hw = parse_size(size)
    report: measuring.MeasuredReport
    if steps:
        report = time_steps(size_hw)
        report.write(out)
    else:
        for each in streams:
            check_count("streams", each)
        costs: list[CamerasCost] = []
        report = CamerasReport(describe_machine(), measurements=costs, size_hw=size_hw)
        with TemporaryDirectory() as path:
            folder = Path(path)
            clip, video = folder / "clip.mp4", folder / "live.flv"
            traffic.write_video(clip, size_hw=size_hw, frames=_GROUP, seed=3)
            write_live(clip, video, _BIT_RATE)
            named = plant(model, None, draw_images(folder, size_hw, _DRAWN) if model in SPECS else [], folder)
            for count, spread in product(streams, processes):
                setting = Setting(
                    model=model,
                    streams=count,
                    troubled=troubled,
                    protocol=protocol,
                    fps=fps,
                    processes=spread,
                    options=options,
                    seconds=seconds,
                    kill=kill,
                )
                costs.append(measure(setting, video, named))
                report.write(out)
    print_result(report, to_stdout=True)


if __name__ == "__main__":
    start(main)
