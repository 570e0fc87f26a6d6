"""Time videos from decoding to COCO RLE in Python: our engine rung by rung, beside other projects (peers).

A rung is the engine in one configuration. All contenders run in one process and take turns on the same video; their
detections are compared before anything is timed. A slow contender's runs end after a few seconds and count as they are.

    python -m benchmarks.video --size 720p --out benchmarks/results/video_720p_h200.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

from benchmarks.chart import check, draw_videos
from benchmarks.command import OnlyOption, ReportOption, SizesOption, start
from benchmarks.contenders import Contender, Image, Ours, build
from benchmarks.planted import plant_network
from benchmarks.video_report import OutputCost, VideoCost, VideoReport
from maskjet import traffic
from maskjet.checks import check_count
from maskjet.cli.options import (
    ModelOption,
    WeightsOption,
    parse_size,
    print_result,
    progress,
    with_config,
)
from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.errors import MaskjetError
from maskjet.host import process
from maskjet.host.machine import describe_machine
from maskjet.host.profiling import Work, profile
from maskjet.host.timing import percentile, play
from maskjet.model import Model, read_network
from maskjet.networks.rfdetr import RFDETR
from maskjet.outputs.opening import open_sinks
from maskjet.parity.pair import Pairing, pair
from maskjet.sources.frames import open_source
from maskjet.spec import SPECS, ModelSpec

OUTPUTS = {"JSON lines": ("out.jsonl",), "JSON lines + annotated video": ("out.jsonl", "out.mp4")}
"""Outputs written from the results of the last rung, by name."""
_SEED = 7
_PLANTED = 25  # masks per frame
_IN_MEMORY = 120  # frames: 750 MB at 1080p, more than any cache
_COMPARED = 6  # frames
_LEAST_MATCHED = 0.5  # share of detections; inference-models resizes differently and matches 0.59 at 720p
_BUDGET_S = 2.0  # per run
_WARM_UP = 24  # frames: three for each of eight slots
_REPLAYS = 200
_PROFILED = 16  # times the frames in flight


def run(
    path: Path | None = None,
    *,
    model: str = "demo",
    weights: Path | None = None,
    sizes_hw: Sequence[tuple[int, int]] = ((720, 1280),),
    config: EngineConfig | None = None,
    frames: int = 538,
    runs: int = 3,
    only: Sequence[str] = (),
    videos: Path | None = None,
    on_progress: Callable[[], object] = lambda: None,
) -> VideoReport:
    """Run generated videos through the contenders.

    Args:
        path: A JSON file to write the report to.
        model: A model of `maskjet.load`; a named size without weights gets random ones that find about 25 masks.
        weights: A weights file of `maskjet.load`.
        sizes_hw: (height, width) of the videos, both even.
        config: Settings that the rungs share; None for the defaults.
        frames: Frames per video, at least 1.
        runs: Runs of each contender on each video, at least 1; the median counts.
        only: Names of rungs and peers; empty for all that can run here.
        videos: A folder to keep the videos in and reuse them from; None for a temporary one.
        on_progress: Called after each size.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above, or as `maskjet.load` says.
        UnsupportedError: The device or precision is not available.
        MaskjetError: Two rungs that must find exactly the same do not.
    """
    check_count("runs", runs)
    check_count("frames", frames)
    machine = describe_machine()
    config = config or EngineConfig()
    trials: list[_Trial] = []
    outputs: list[OutputCost] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        if model in SPECS and weights is None:
            network = _plant(SPECS[model], _decode(_draw(videos or folder, sizes_hw[0], frames)))
        else:
            network = read_network(model, weights)
        contenders, notes, models = build(network, config, only)
        for each in models:
            stack.enter_context(each)

        def write(*, is_profiled: bool) -> VideoReport:
            measurements = [trial.finish(is_profiled=is_profiled) for trial in trials]
            found = VideoReport(machine, measurements, notes, outputs, model, frames, runs)
            found.write(path)
            return found

        for size_hw in sizes_hw:
            file = _draw(videos or folder, size_hw, frames)
            images = _decode(file)
            device = config.resolve_device()
            same, refused = _compare([_Trial(each, file, images, size_hw, device) for each in contenders])
            notes += refused
            outputs += _measure(same, folder, runs)
            trials += same
            write(is_profiled=False)
            on_progress()
        return write(is_profiled=True)  # last: the profiler slows later launches


def _measure(trials: Sequence[_Trial], folder: Path, runs: int) -> list[OutputCost]:
    """Run all in turns, then time their frames one by one; returns the last rung's speed with outputs written."""
    with process.garbage_frozen():  # as `maskjet run` does; for the peers as well
        for _ in range(runs):
            for trial in trials:
                trial.play()
        for trial in trials:
            trial.time_frames()
        return _write_outputs(trials, folder, runs)


def _draw(folder: Path, size_hw: tuple[int, int], frames: int) -> Path:
    height, width = size_hw
    path = folder / f"street_{width}x{height}_{frames}_{_SEED}.mp4"
    if not path.exists():
        traffic.write_video(path, size_hw=size_hw, frames=frames, seed=_SEED)
    return path


def _decode(path: Path) -> list[Image]:
    with open_source(path) as source:
        return [frame.image for frame in islice(source, _IN_MEMORY)]


def _plant(spec: ModelSpec, images: Sequence[Image]) -> RFDETR:
    return plant_network(spec, images[:: max(len(images) // 8, 1)], survivors=_PLANTED)


def _compare(trials: Sequence[_Trial]) -> tuple[list[_Trial], list[str]]:
    """Compare detections with the first contender's; uncompiled rungs of a kind must find the same.

    Returns:
        Contenders whose detections match, and the reasons why others are left out.
    """
    baseline, admitted, notes = trials[0], list[_Trial](), list[str]()
    exact: dict[object, _Trial] = {}
    for trial in trials:
        trial.look()
        trial.pairs = _pair_all(baseline.found, trial.found)
        if isinstance(trial.contender, Ours) and not trial.contender.model.config.compile:
            done = trial.contender.model.report()
            other = exact.setdefault((done.network, *done.steps.items()), trial)
            if [found.as_dict() for found in other.found] != [found.as_dict() for found in trial.found]:
                raise MaskjetError(f"{trial.contender.name} must find exactly the same as {other.contender.name}.")
        if trial.pairs.share >= _LEAST_MATCHED:
            admitted.append(trial)
        else:
            notes.append(f"{trial.contender.name} left out: {trial.pairs.share:.1%} of its detections match")
    return admitted, notes


def _pair_all(expected: Iterable[Detections], actual: Iterable[Detections]) -> Pairing:
    """Pair the detections of two variants on the same images, image by image."""
    result = Pairing()
    for one, other in zip(expected, actual, strict=True):
        result.add(pair(one, other))
    return result


class _Trial:
    """One contender on one video."""

    def __init__(
        self,
        contender: Contender,
        file: Path,
        images: Sequence[Image],
        size_hw: tuple[int, int],
        device: torch.device,
    ) -> None:
        self.contender, self.file, self.images, self.size_hw = contender, file, images, size_hw
        self.device = device
        self.found: list[Detections] = []
        self.pairs = Pairing()
        self._fps: list[float] = []
        self._memory_fps: list[float] = []
        self._times_ms: list[float] = []
        self._replays_ms: list[float] = []
        self._detections: list[int] = []

    def look(self) -> None:
        """Warm up, then keep the detections of some frames."""
        for _ in self.contender.loop(self.images, _WARM_UP * self.contender.sources):
            pass
        step = max(len(self.images) // _COMPARED, 1)
        self.found = [self.contender.detect(image) for image in self.images[::step]]

    def play(self) -> None:
        """Run once from the file, and once from memory."""
        if self.contender.sources == 1:
            self._fps.append(self._rate(self.contender.play(self.file)))
        count = 4 * _IN_MEMORY * self.contender.sources
        self._memory_fps.append(self._rate(self.contender.loop(self.images, count)))

    def _rate(self, results: Iterator[Any]) -> float:
        counts, fps = play(results, _BUDGET_S)
        self._detections += counts
        return fps

    def time_frames(self) -> None:
        """Time frames one by one."""
        if self.contender.in_flight > 1:
            return
        for image in list(self.images) * 3:
            self._times_ms.append(_time_ms(lambda image=image: self.contender.call(image)))  # type: ignore[misc]
            if sum(self._times_ms) > 1000 * _BUDGET_S:
                break
        replay = self.contender.replay() if isinstance(self.contender, Ours) else None
        if replay is not None:
            self._replays_ms = [_time_ms(replay) for _ in range(_REPLAYS)]

    def finish(self, *, is_profiled: bool) -> VideoCost:
        """Summarise the runs."""
        work = self._profile() if is_profiled else None
        return VideoCost(
            name=self.contender.name,
            what=self.contender.what,
            precision=self.contender.model.report().precision if isinstance(self.contender, Ours) else "-",
            size_hw=self.size_hw,
            detections=round(statistics.mean(self._detections), 2),
            matched=round(self.pairs.share, 4),
            max_confidence_difference=max(self.pairs.confidence_differences, default=0.0),
            fps=round(statistics.median(self._fps), 2) if self._fps else None,
            memory_fps=round(statistics.median(self._memory_fps), 2),
            p50_ms=_percentile(self._times_ms, 0.5),
            p99_ms=_percentile(self._times_ms, 0.99),
            replay_ms=_percentile(self._replays_ms, 0.5),
            launches=None if work is None else work.launches,
            copies=None if work is None else work.host_copies,
            waits=None if work is None else work.waits,
            gpu_busy=None if work is None else work.busy,
        )

    def _profile(self) -> Work | None:
        count = _PROFILED * self.contender.in_flight

        def call() -> None:
            for _ in self.contender.loop(self.images, count):
                pass

        return profile(call, self.device, items=count)


def _time_ms(call: Callable[[], object]) -> float:
    before = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - before)


def _percentile(times_ms: Sequence[float], share: float) -> float | None:
    return round(percentile(times_ms, share), 3) if times_ms else None


def _write_outputs(trials: Sequence[_Trial], folder: Path, runs: int) -> list[OutputCost]:
    """Time the last rung with a single source while it writes outputs."""
    ours = [(t, t.contender) for t in trials if isinstance(t.contender, Ours) and t.contender.sources == 1]
    measured = []
    for trial, rung in ours[-1:]:
        for output, names in OUTPUTS.items():
            outs = [str(folder / name) for name in names]
            rate = statistics.median(write_outputs(rung.model, trial.file, outs, rung.rung.depth) for _ in range(runs))
            measured.append(OutputCost(rung.name, trial.size_hw, output, round(rate, 2)))
    return measured


def write_outputs(model: Model, file: Path, outs: Sequence[str], depth: int = 2) -> float:
    """Run a video and write the outputs; returns frames per second."""
    start, count = time.perf_counter(), 0
    with ExitStack() as stack:
        source = stack.enter_context(open_source(file))
        sinks = stack.enter_context(open_sinks(outs, fps=source.fps))
        results = stack.enter_context(closing(model.stream(source, depth=depth)))
        for frame, found in results:
            sinks.write(frame, found)
            count += 1
            if time.perf_counter() - start > _BUDGET_S:
                break
    return count / (time.perf_counter() - start)


@with_config("device", "precision")
def main(
    *,
    out: ReportOption = None,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    size: SizesOption = None,
    config: EngineConfig,
    frames: Annotated[int, typer.Option(help="Frames per video.")] = 538,
    runs: Annotated[int, typer.Option(help="Runs per contender and video; the median counts.")] = 3,
    only: OnlyOption = None,
    videos: Annotated[Path | None, typer.Option(help="A folder to keep the videos in and reuse them.")] = None,
    chart: Annotated[Path | None, typer.Option(help="A .png or .svg for a chart of the speeds.")] = None,
) -> None:
    """Time street videos from decoding to RLE, in each of the engine's configurations and in other projects."""
    sizes_hw = [parse_size(text) for text in size or ("720p",)]
    if chart is not None:
        check()  # before anything is measured
    with progress("measuring", len(sizes_hw)) as advance:
        found = run(
            out,
            model=model,
            weights=weights,
            sizes_hw=sizes_hw,
            config=config,
            frames=frames,
            runs=runs,
            only=only or (),
            videos=videos,
            on_progress=advance,
        )
    if chart is not None:
        draw_videos(found.as_dict(), chart)
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
