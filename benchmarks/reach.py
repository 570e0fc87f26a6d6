"""How many cameras one GPU takes: videos and live streams to COCO RLE on the host, beside the floors of each figure.

    python -m benchmarks.reach --model rf-detr-seg-nano --out benchmarks/results/reach_h200.json

The most important is measured first, and the report is written after each measurement. What no time is left for, and
what fails, is a note. Without a GPU the videos are small: this shows that the benchmark works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.command import OnlyOption, ReportOption, check_names, start
from benchmarks.peers.pipeline import Pipeline
from benchmarks.peers.rfdetr import build_fastest
from benchmarks.planted import TINY, plant_network
from benchmarks.reach_live import measure_latency
from benchmarks.reach_peers import LOOPS, OUTPUTS, Loop, time_loop
from benchmarks.reach_report import DecodingSpeed, ReachReport, StreamSpeed
from benchmarks.reach_speed import bytes_of, measure_pcie, open_all, time_decoding, time_graphs, time_stream
from benchmarks.reach_videos import SIZES_HW, Videos
from maskjet import traffic
from maskjet.checks import check_count
from maskjet.cli.options import ModelOption, WeightsOption, print_result, with_config
from maskjet.config import DEFAULT_THRESHOLD, EngineConfig
from maskjet.errors import UnsupportedError, first_line
from maskjet.host import process
from maskjet.host.machine import describe_machine
from maskjet.host.timing import rotate
from maskjet.model import Model, read_network
from maskjet.networks import Network
from maskjet.networks.rfdetr import RFDETR
from maskjet.sources.frames import open_source
from maskjet.spec import SPECS, ModelSpec

DECODERS = ("cuda", "cpu")
PARTS = ("streams", "live", "peers", "border")
"""What can be measured, the most important first; "border" is decoding alone, to find the border between decoders."""
_PLANTED = 25  # masks per frame
_IN_MEMORY = 120  # frames
_CYCLED = 10**9  # frames from memory: as good as without an end
_LIVE_FPS = 30.0
_LIVE_SETTLE_S = 5.0
_SHORTER, _LONGER = 0.5, 2.0  # of the time of a measurement: graphs and the border between decoders; live streams


@dataclass(frozen=True)
class Stream:
    """A workload of `Model.stream`."""

    size: str
    """Name of the frames' size."""
    streams: int
    """Sources side by side."""
    depth: int
    """Batches in flight."""
    batch: int
    """Most frames in a batch."""


@dataclass(frozen=True)
class Plan:
    """What is measured on a kind of machine."""

    frames: dict[str, tuple[int, int]]
    """By size: frames to draw, and frames of the file, a multiple of those."""
    files: Sequence[Stream]
    """Workloads from files, with each decoder."""
    memory: Stream
    """The workload from memory."""
    live: Stream
    """The live streams."""
    border: Sequence[tuple[str, int]]
    """Size and number of streams of further decoding alone."""
    peers: str
    """Size of the peers' video."""


LARGE = Plan(
    frames={"312": (150, 36_000), "720p": (150, 18_000), "1080p": (120, 7_200), "2160p": (30, 1_800)},
    files=(
        Stream("1080p", 32, 3, 16),
        Stream("1080p", 16, 3, 16),
        Stream("1080p", 1, 4, 1),
        Stream("720p", 32, 3, 16),
    ),
    memory=Stream("312", 16, 3, 16),
    live=Stream("1080p", 32, 2, 16),
    border=(
        *(("1080p", 4), ("720p", 4), ("720p", 1), ("1080p", 2), ("1080p", 8), ("720p", 8), ("2160p", 1), ("2160p", 4)),
        *(("312", 1), ("312", 32), ("720p", 2), ("312", 8), ("2160p", 2), ("720p", 16), ("2160p", 16)),
    ),
    peers="1080p",
)
"""For a GPU."""
SMALL = Plan(
    frames={"312": (30, 900)},
    files=(Stream("312", 4, 2, 4), Stream("312", 1, 4, 1)),
    memory=Stream("312", 4, 2, 4),
    live=Stream("312", 2, 2, 2),
    border=(("312", 2),),
    peers="312",
)
"""For a CPU."""


def run(
    path: Path | None = None,
    *,
    model: str = "rf-detr-seg-nano",
    weights: Path | None = None,
    config: EngineConfig | None = None,
    seconds: float = 3.0,
    limit_s: float = 215.0,
    live_streams: int | None = None,
    live_settle_s: float = _LIVE_SETTLE_S,
    only: Sequence[str] = (),
    decoders: Sequence[str] = (),
    videos: Path | None = None,
) -> ReachReport:
    """Measure all parts.

    Args:
        path: A JSON file for the report, written after each measurement.
        model: A model of `maskjet.load`; a named size without weights gets random ones that find about 25 masks. "tiny"
            is a network that takes milliseconds on a CPU.
        weights: A weights file of `maskjet.load`.
        config: How to run the model; its `batch` is raised to what the workloads need. None for the defaults.
        seconds: Time of a measurement, without its beginning.
        limit_s: Time after which no measurement begins.
        live_streams: Number of live streams; None for the plan's.
        live_settle_s: Time of live streams that does not count; see `measure_latency`.
        only: Of `PARTS`; empty for all.
        decoders: Of "cuda" and "cpu"; empty for all that are here.
        videos: A folder to keep the videos in and reuse them from; None for a temporary one.

    Returns:
        The report, which prints as tables.

    Raises:
        InputError: An argument is not as above.
    """
    began = time.monotonic()
    check_names(only, PARTS)
    check_names(decoders, DECODERS, "decoder")
    config = config or EngineConfig()
    device = config.resolve_device()
    plan = LARGE if device.type == "cuda" else SMALL
    if live_streams is not None:
        check_count("live_streams", live_streams)
        plan = replace(plan, live=replace(plan.live, streams=live_streams))
    workloads = (*plan.files, plan.memory, plan.live)
    config = replace(config, batch=max(config.batch, *(each.batch for each in workloads)))
    with ExitStack() as stack:
        folder = videos or Path(stack.enter_context(TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        files = stack.enter_context(Videos(folder, plan.frames, plan.live.size))
        network = _plant(model, weights, plan)
        ours = stack.enter_context(Model(deepcopy(network), config))  # a Model moves and converts its network
        if {"streams", "live"} & set(only or PARTS):
            for batch in sorted({each.batch for each in workloads}):
                ours._engine.steps.prepare(batch)  # while the videos are written
        measuring = _Measuring(plan, files, ours, seconds, began, limit_s, path, model, decoders or DECODERS)
        stack.enter_context(process.garbage_frozen())
        parts: dict[str, Callable[[], None]] = {
            "streams": measuring.measure_streams,
            "live": partial(measuring.measure_live, live_settle_s),
            "peers": partial(measuring.measure_peers, network),
            "border": measuring.measure_border,
        }
        for part in PARTS:
            if not only or part in only:
                parts[part]()
        return measuring.report


def _plant(model: str, weights: Path | None, plan: Plan) -> Network:
    specs: Mapping[str, ModelSpec] = {**SPECS, TINY.name: TINY}
    if model not in specs or weights is not None:
        network: Network = read_network(model, weights)
        return network
    streets = [traffic.sample(seed=seed, size_hw=SIZES_HW[plan.peers]).image for seed in range(8)]
    return plant_network(specs[model], streets, survivors=min(_PLANTED, specs[model].queries // 2))


class _Measuring:
    """Measures part by part, and writes what is known after each step."""

    def __init__(
        self,
        plan: Plan,
        files: Videos,
        model: Model,
        seconds: float,
        began: float,
        limit_s: float,
        path: Path | None,
        name: str,
        decoders: Sequence[str],
    ) -> None:
        self._plan, self._files, self._model, self._seconds = plan, files, model, seconds
        self._began, self._limit_s, self._path = began, limit_s, path
        self._device = model._engine.steps.device
        here = {"cuda": str(self._device), "cpu": "cpu"} if self._device.type == "cuda" else {"cpu": "cpu"}
        self._decoders = [name for kind, name in here.items() if kind in decoders]
        self._pcie = measure_pcie(self._device)
        self.report = ReachReport(
            describe_machine(),
            [],
            model=name,
            precision=model.report().precision,
            pcie_gb_s=None if self._pcie is None else round(self._pcie / 1e9, 1),
        )

    def measure_streams(self) -> None:
        """Detecting on files and from memory, with decoding alone beside it."""
        for workload in self._plan.files:
            for decoder in self._decoders:
                self._try(
                    f"decoding {workload.streams} × {workload.size}, {decoder}",
                    partial(self._decode, workload.size, workload.streams, decoder, self._seconds),
                )
                self._try(
                    f"{workload.streams} × {workload.size}, {decoder}", partial(self._stream_files, workload, decoder)
                )
        self._try("from memory", self._stream_memory)

    def measure_live(self, settle_s: float) -> None:
        """Delays of live streams."""
        for decoder in self._decoders:
            self._try(f"live, {decoder}", partial(self._live, decoder, settle_s))

    def measure_peers(self, network: Network) -> None:
        """Other projects."""

        @cache
        def build() -> Pipeline:
            if not isinstance(network, RFDETR):
                raise UnsupportedError("the peers run RF-DETR only")
            return build_fastest(network.state_dict(), network.spec, self._device, DEFAULT_THRESHOLD)

        for loop, output in product(LOOPS, OUTPUTS):
            self._try(f"{loop.name}, {output}", partial(self._peer, build, loop, output))

    def measure_border(self) -> None:
        """Decoding alone, of more sizes and numbers of streams."""
        for size, streams in self._plan.border:
            for decoder in self._decoders:
                self._try(
                    f"decoding {streams} × {size}, {decoder}",
                    partial(self._decode, size, streams, decoder, self._seconds * _SHORTER),
                )

    def _try(self, what: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure if there is time, add what was found to the report, and write it.

        One that fails must not cost the others their time on a machine that is lent for minutes.
        """
        if time.monotonic() - self._began > self._limit_s:
            self._add(notes=f"{what} left out: {self._limit_s:.0f} s have passed")
            return
        try:
            found = measure()
        except Exception as error:
            self._add(notes=f"{what} left out: {type(error).__name__}: {first_line(error)}")
        else:
            self._add(**found)

    def _add(self, **found: Any) -> None:
        """Add an item to fields of the report."""
        longer: dict[str, Any] = {name: [*getattr(self.report, name), item] for name, item in found.items()}
        self.report = replace(self.report, **longer, seconds=round(time.monotonic() - self._began, 1))
        self.report.write(self._path)

    def _file(self, size: str) -> Path:
        """The file of a size, once it is written; describes it in the report."""
        if all(each.size != size for each in self.report.videos):
            self._add(videos=self._files.describe(size))
        return self._files.get(size)

    def _decode(self, size: str, streams: int, decoder: str, seconds: float) -> dict[str, Any]:
        speed = time_decoding(self._file(size), streams, decoder, seconds)
        return {"decoding": DecodingSpeed(size, streams, decoder, speed)}

    def _stream_files(self, workload: Stream, decoder: str) -> dict[str, Any]:
        sources = open_all([self._file(workload.size)] * workload.streams, decoder)
        length = self._plan.frames[workload.size][1]
        return self._stream(workload, decoder, sources, length, self._files.bytes_per_frame(workload.size))

    def _stream_memory(self) -> dict[str, Any]:
        workload = self._plan.memory
        with open_source(self._file(workload.size)) as source:
            images = [frame.image for frame in islice(source, _IN_MEMORY)]
        sources = [rotate(images, _CYCLED, start) for start in range(workload.streams)]
        return self._stream(workload, "memory", sources, None, 0.0)

    def _stream(
        self, workload: Stream, decoder: str, sources: Sequence[Any], length: int | None, encoded: float
    ) -> dict[str, Any]:
        """Detect, and measure the floors; `encoded` is a frame's bytes before it is decoded."""
        depth, batch = workload.depth, workload.batch
        found = time_stream(self._model, sources, depth=depth, batch=batch, seconds=self._seconds, length=length)
        bytes_per_frame = bytes_of(found.pixels) or encoded
        graphs_fps = time_graphs(self._model, found.pixels, depth, batch, self._seconds * _SHORTER)
        measured = StreamSpeed(
            size=workload.size,
            streams=workload.streams,
            decoder=decoder,
            depth=depth,
            batch=batch,
            speed=found.speed,
            detections=found.detections,
            gpu_mib=found.gpu_mib,
            graphs_fps=graphs_fps,
            pcie_fps=None if self._pcie is None else round(self._pcie / bytes_per_frame, 1),
        )
        return {"measurements": measured}

    def _live(self, decoder: str, settle_s: float) -> dict[str, Any]:
        live = self._plan.live
        measured = measure_latency(
            self._model,
            self._files.get_live(),
            live.size,
            streams=live.streams,
            decoder=decoder,
            fps=_LIVE_FPS,
            depth=live.depth,
            batch=live.batch,
            settle_s=settle_s,
            seconds=self._seconds * _LONGER,
        )
        return {"latencies": measured}

    def _peer(self, build: Callable[[], Pipeline], loop: Loop, output: str) -> dict[str, Any]:
        size = self._plan.peers
        return {"peers": time_loop(loop, build(), output, self._file(size), size, self._seconds)}


@with_config("device", "precision", "compile")
def main(
    *,
    out: ReportOption = None,
    model: ModelOption = "rf-detr-seg-nano",
    weights: WeightsOption = None,
    config: EngineConfig,
    seconds: Annotated[float, typer.Option(help="Time of a measurement.")] = 3.0,
    limit: Annotated[float, typer.Option(help="Seconds after which no measurement begins.")] = 215.0,
    live_streams: Annotated[int | None, typer.Option(help="Live streams; by default 32, or 2 without a GPU.")] = None,
    only: OnlyOption = None,
    decoders: Annotated[
        list[str] | None, typer.Option("--decoder", help="cuda or cpu; repeated, all if not given.")
    ] = None,
    videos: Annotated[Path | None, typer.Option(help="A folder to keep the videos in and reuse them.")] = None,
) -> None:
    """Measure how many videos and cameras one GPU takes, beside the floors of each figure."""
    found = run(
        out,
        model=model,
        weights=weights,
        config=config,
        seconds=seconds,
        limit_s=limit,
        live_streams=live_streams,
        only=only or (),
        decoders=decoders or (),
        videos=videos,
    )
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
