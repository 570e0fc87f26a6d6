"""How fast a video goes through a model, decoding and writing included.

All variants run in one process and take turns on the same street. A run lasts from the first frame asked for to the
last one written; the model is loaded and warm. The network's time alone stands beside it, the least any engine that
runs it frame by frame, as it is, could take.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet import traffic
from maskjet.bench import report
from maskjet.bench.machine import describe_machine
from maskjet.bench.timing import synchronize
from maskjet.config import EngineConfig, Precision
from maskjet.frames import open_source
from maskjet.model import Model, read_network
from maskjet.networks.rfdetr import RFDETR
from maskjet.sinks import open_sinks

OUTPUTS = {"detections": (), "JSON lines": ("out.jsonl",), "JSON lines + annotated video": ("out.jsonl", "out.mp4")}
"""What is made of the results, by name: nothing beyond `Detections`, or the files."""
_WARM_UP_FRAMES = 8
_SEED = 7


@dataclass(frozen=True)
class Measurement:
    """One model on one video."""

    model: str
    """As `load` takes it."""
    size_hw: tuple[int, int]
    """Of the frames."""
    precision: str
    """The network's."""
    output: str
    """A key of `OUTPUTS`."""
    frames: int
    """Of the video."""
    detections: int
    """In all of them."""
    runs: int
    """How often the video was run."""
    fps: float
    """Frames per second, the median run's."""
    ms_per_frame: float
    """The same as time."""
    network_ms: float
    """The network alone on one frame, median: the floor."""


@dataclass(frozen=True)
class Report(report.Report):
    """All measurements of a run."""

    measurements: Sequence[Measurement]
    """By size, precision and output."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        rows = [("model", "frames", "precision", "output", "frames/s", "ms/frame", "network alone, ms")]
        for m in self.measurements:
            frames = f"{m.frames} × {m.size_hw[1]} × {m.size_hw[0]}"
            times = (f"{m.fps:.1f}", f"{m.ms_per_frame:.1f}", f"{m.network_ms:.1f}")
            rows.append((m.model, frames, m.precision, m.output, *times))
        return list(rows)


def run(
    path: Path | None = None,
    *,
    model: str = "demo",
    weights: Path | None = None,
    sizes_hw: Sequence[tuple[int, int]] = ((720, 1280),),
    precisions: Sequence[Precision] = ("fp32",),
    frames: int = 150,
    runs: int = 3,
) -> Report:
    """Run generated videos through a model.

    Args:
        path: A JSON file to write the report to.
        model: As for `maskjet.load`.
        weights: As for `maskjet.load`.
        sizes_hw: (height, width) of the videos, even.
        precisions: Of the network.
        frames: Of each video, at least 1.
        runs: Of each video, at least 1; the median counts.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above, or as `maskjet.load` says.
        UnsupportedError: A precision is not to be had here.
    """
    report.check_runs(runs)
    machine = describe_machine()
    measurements: list[Measurement] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        contenders = []
        for precision in dict.fromkeys(precisions):
            network = read_network(model, weights)
            runner = stack.enter_context(Model(network, EngineConfig(precision=precision)))
            contenders += [_Contender(model, runner, network, output) for output in OUTPUTS]
        for size_hw in sizes_hw:
            video = folder / "{}x{}.mp4".format(*size_hw)
            traffic.write_video(video, size_hw=size_hw, frames=frames, seed=_SEED)
            with open_source(video) as source:
                first = next(iter(source)).image
            for contender in contenders:
                contender.warm_up(first)
            for _ in range(runs):
                for contender in contenders:
                    contender.run_once(video, folder)
            measurements += [contender.finish(size_hw) for contender in contenders]
    found = Report(machine, measurements)
    found.write(path)
    return found


class _Contender:
    """A model with an output, and what its runs over a video took."""

    def __init__(self, name: str, model: Model, network: RFDETR, output: str) -> None:
        self.name, self.model, self.network, self.output = name, model, network, output
        self._reset()

    def _reset(self) -> None:
        self.counts: list[int] = []
        self.seconds: list[float] = []
        self.network_ms: list[float] = []

    def warm_up(self, image: NDArray[np.uint8]) -> None:
        """Compile, allocate and fill caches."""
        for _ in range(_WARM_UP_FRAMES):
            self.model.predict(image)

    def run_once(self, video: Path, folder: Path) -> None:
        """Take all of a video through the model into the outputs."""
        outs = [str(folder / out) for out in OUTPUTS[self.output]]
        self.counts = []
        start = time.perf_counter()
        with ExitStack() as stack:
            source = stack.enter_context(open_source(video))
            sinks = stack.enter_context(open_sinks(outs, fps=source.fps)) if outs else None
            for frame, detections in self.model.stream(source):
                self.counts.append(len(detections))
                if sinks is not None:
                    sinks.write(frame, detections)
        self.seconds.append(time.perf_counter() - start)
        self._time_network()

    @torch.inference_mode()
    def _time_network(self) -> None:
        weight = next(self.network.parameters())
        side = self.network.spec.input_size
        images = torch.rand(_WARM_UP_FRAMES, 1, 3, side, side).to(weight)
        for image in images:
            start = time.perf_counter()
            self.network(image)
            synchronize(weight.device)
            self.network_ms.append(1000 * (time.perf_counter() - start))

    def finish(self, size_hw: tuple[int, int]) -> Measurement:
        """Sum the runs up, ready for another video."""
        seconds = statistics.median(self.seconds)
        measurement = Measurement(
            model=self.name,
            size_hw=size_hw,
            precision=self.model.report().precision,
            output=self.output,
            frames=len(self.counts),
            detections=sum(self.counts),
            runs=len(self.seconds),
            fps=round(len(self.counts) / seconds, 2),
            ms_per_frame=round(1000 * seconds / len(self.counts), 2),
            network_ms=round(statistics.median(self.network_ms), 2),
        )
        self._reset()
        return measurement
