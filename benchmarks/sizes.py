"""Time images of 200 sizes beside as many of one size with as many pixels: one by one, in lists, streams and sources.

Both columns take turns in one process, on images in memory. Before anything is timed, images of all sizes must be
answered as each is alone.

    python -m benchmarks.sizes --out benchmarks/results/sizes_h200.json
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.command import OnlyOption, ReportOption, check_names, start
from benchmarks.peers import rfdetr
from benchmarks.planted import plant_detector, plant_network
from benchmarks.two_stage import CANDIDATES
from benchmarks.two_stage_contest import to_float
from maskjet import load, traffic
from maskjet.checks import check_count
from maskjet.cli.options import print_result
from maskjet.config import DEFAULT_THRESHOLD, EngineConfig
from maskjet.engine.slot import GraphSlot
from maskjet.errors import MaskjetError, UnsupportedError
from maskjet.export.rewrites import optimize
from maskjet.host import measuring, process
from maskjet.host.machine import describe_machine
from maskjet.host.tables import shown
from maskjet.host.timing import percentile, play, rotate
from maskjet.model import Model
from maskjet.networks.rfdetr import RFDETR
from maskjet.parity.pair import pair
from maskjet.spec import SPECS

Image = NDArray[np.uint8]
_MASKS = 33  # per image
_STREETS = 8  # drawn, then resized to all sizes
_BATCH = 16
_LEAST_MATCHED = 0.98  # detections of lists beside those of each image alone: batches round otherwise
_PEERS = ("rfdetr_inductor, masks", "rfdetr_inductor, RLE")
_WAYS = ("one by one", "stream, depth 4", "lists of 16", "16 sources, depth 3")


@dataclass
class SizesCost:
    """The speed of one way to detect, on images of one size and of many."""

    way: str
    """How the images were given, or the peer that detected one by one."""
    images_per_s: dict[str, float | None] = field(default_factory=dict)
    """Median over the runs, by "one size" and "many sizes"; None where it was not measured."""
    p50_ms: dict[str, float | None] = field(default_factory=dict)
    """Median time of a call, one by one."""
    p99_ms: dict[str, float | None] = field(default_factory=dict)
    """99th percentile of the time of a call, one by one."""
    captured: int | None = None
    """CUDA graphs captured while the runs were timed; None without graphs."""


@dataclass(frozen=True)
class SizesReport(measuring.MeasuredReport):
    """The speed of images of many sizes; measurements are `SizesCost`."""

    model: str = ""
    """Name of the model."""
    sizes: int = 0
    """Number of sizes."""
    one_hw: tuple[int, int] = (0, 0)
    """(height, width) of the images of one size."""
    masks: float = 0.0
    """Median number of masks per image."""
    runs: int = 0
    """Runs of each way on each column."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per way."""
        found: list[tuple[str, ...]] = [
            ("way", "one size, /s", "many sizes, /s", "share", "p50, ms", "p99, ms", "captured")
        ]
        for each in self.measurements:
            one, many = each.images_per_s["one size"], each.images_per_s["many sizes"]
            share = f"{many / one:.1%}" if one and many else "-"
            times = (shown(each.p50_ms.get("many sizes"), 2), shown(each.p99_ms.get("many sizes"), 2))
            found.append((each.way, shown(one, 1), shown(many, 1), share, *times, str(each.captured)))
        return found

    def __str__(self) -> str:
        height, width = self.one_hw
        head = f"{self.model}, {self.sizes} sizes beside {width} × {height}, {self.masks:.0f} masks per image"
        return f"{head}\n{super().__str__()}"


def run(
    path: Path | None = None,
    *,
    model: str = "rf-detr-seg-nano",
    sizes: int = 200,
    least: int = 200,
    most: int = 900,
    config: EngineConfig | None = None,
    runs: int = 5,
    seconds: float = 1.0,
    only: Sequence[str] = (),
) -> SizesReport:
    """Detect on images of many sizes and of one size, in turns.

    Args:
        path: A JSON file to write the report to.
        model: A size of RF-DETR-Seg or a builder of torchvision, which get random weights that find about 33 masks; or
            another model of `load`.
        sizes: Number of sizes, at least 16.
        least: Smallest side in pixels, at least 1.
        most: Largest side in pixels.
        config: How to run; None for the defaults.
        runs: Runs of each way on each column; the median counts.
        seconds: About how long a run takes.
        only: Ways and peers; empty for all that can run here.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above.
        MaskjetError: Images of many sizes are not answered as each is alone.
    """
    check_count("runs", runs)
    check_names(only, (*_WAYS, *_PEERS))
    draw = random.Random(0)
    sizes_hw = [(draw.randint(least, most), draw.randint(least, most)) for _ in range(sizes)]
    side = round(statistics.mean(height * width for height, width in sizes_hw) ** 0.5)
    streets = [traffic.sample(seed=seed, size_hw=(720, 960)).image for seed in range(_STREETS)]
    columns = {"one size": _resized(streets, [(side, side)] * sizes), "many sizes": _resized(streets, sizes_hw)}
    config = config or EngineConfig(batch=_BATCH)
    notes: list[str] = []
    network = plant_network(SPECS[model], streets, survivors=_MASKS) if model in SPECS else None
    with _load(model, network, streets, config) as ours:
        masks = statistics.median(len(ours.predict(image)) for image in columns["many sizes"][:32])
        _check(ours, columns["many sizes"])
        ways = {name: _way_of(ours, name) for name in _WAYS}
        if network is not None:
            ways |= _peers(network, ours, notes)
        costs = [
            _measure(ours, name, way, columns, runs, seconds) for name, way in ways.items() if not only or name in only
        ]
    found = SizesReport(describe_machine(), costs, notes, model, sizes, (side, side), masks, runs)
    found.write(path)
    return found


def _load(model: str, network: RFDETR | None, streets: Sequence[Image], config: EngineConfig) -> Model:
    if network is not None:
        return Model(network, config)
    if not model.endswith(("rcnn_resnet50_fpn", "rcnn_resnet50_fpn_v2")):
        return load(model, batch=config.batch, device=config.device)
    images = [to_float(image, config.resolve_device()) for image in streets]
    planted = plant_detector(model, images, candidates=CANDIDATES, survivors=_MASKS)
    return Model(optimize(planted.cpu()), config, threshold=planted.roi_heads.score_thresh)


def _resized(streets: Sequence[Image], sizes_hw: Sequence[tuple[int, int]]) -> list[Image]:
    return [
        np.asarray(cv2.resize(streets[number % len(streets)], size_hw[::-1]), dtype=np.uint8)
        for number, size_hw in enumerate(sizes_hw)
    ]


def _check(model: Model, images: Sequence[Image]) -> None:
    """Check that images of many sizes are answered as each is alone: exactly one by one, nearly so in lists."""
    alone = [model.predict(image) for image in images]
    for (frame, found), expected in zip(model.stream(images, depth=4, batch=1), alone, strict=True):
        if found.rle != expected.rle or not np.array_equal(found.xyxy, expected.xyxy):
            raise MaskjetError(f"Image {frame.index} of a stream must be answered as it is alone.")
    starts = range(0, len(images), _BATCH)
    lists = [found for start in starts for found in model.predict(images[start : start + _BATCH])]
    matched = sum(pair(one, other).matched for one, other in zip(lists, alone, strict=True))
    if (share := matched / max(sum(map(len, alone)), 1)) < _LEAST_MATCHED:
        raise MaskjetError(f"Lists must find what each image has alone, matched {share:.1%} of the detections.")


def _way_of(model: Model, name: str) -> Callable[[Sequence[Image], float], tuple[int, float, list[float]]]:
    """A function that detects on images for some time: how many, in how many seconds, and the seconds of each call."""

    def one_by_one(images: Sequence[Image], seconds: float) -> tuple[int, float, list[float]]:
        return _call_each(model.predict, images, seconds)

    def in_lists(images: Sequence[Image], seconds: float) -> tuple[int, float, list[float]]:
        lists = [images[start : start + _BATCH] for start in range(0, len(images) - _BATCH + 1, _BATCH)]
        calls, took, _ = _call_each(model.predict, lists, seconds)
        return calls * _BATCH, took, []

    def streamed(images: Sequence[Image], seconds: float) -> tuple[int, float, list[float]]:
        return _play(model.stream(rotate(images, 10**9), depth=4, batch=1), seconds)

    def from_sources(images: Sequence[Image], seconds: float) -> tuple[int, float, list[float]]:
        step = len(images) // _BATCH  # each source has images of one size
        sources = [rotate(images[number * step : number * step + 1], 10**9) for number in range(_BATCH)]
        return _play(model.stream(sources, depth=3, batch=_BATCH), seconds)

    return dict(zip(_WAYS, (one_by_one, streamed, in_lists, from_sources), strict=True))[name]


def _call_each(detect: Callable[[Any], Any], inputs: Sequence[Any], seconds: float) -> tuple[int, float, list[float]]:
    times: list[float] = []
    start = now = time.perf_counter()
    while now < start + seconds or len(times) < len(inputs):
        detect(inputs[len(times) % len(inputs)])
        before, now = now, time.perf_counter()
        times.append(now - before)
    return len(times), now - start, times


def _play(results: Any, seconds: float) -> tuple[int, float, list[float]]:
    counts, rate = play(results, seconds)
    return len(counts), len(counts) / rate, []


def _peers(network: Any, model: Model, notes: list[str]) -> dict[str, Any]:
    """Rfdetr compiled by inductor, called image by image: its dense masks, and those encoded as RLE."""
    device = model._engine.steps.device
    try:
        theirs = rfdetr.build_inductor(network.state_dict(), network.spec, device, DEFAULT_THRESHOLD)
    except UnsupportedError as error:
        notes.append(f"{_PEERS[0]} left out: {error}")
        return {}
    return {name: partial(_call_each, call) for name, call in zip(_PEERS, (theirs.predict, theirs.detect), strict=True)}


def _captured(model: Model) -> int | None:
    engine = model._engine
    if engine.why_no_graph is not None:
        return None
    slots = [slot for slot in engine._idle if isinstance(slot, GraphSlot)]
    return sum(graph.is_captured for slot in slots for graph in slot.graphs)


def _measure(
    model: Model, name: str, way: Any, columns: dict[str, list[Image]], runs: int, seconds: float
) -> SizesCost:
    cost = SizesCost(name)
    rates: dict[str, list[float]] = {column: [] for column in columns}
    times: dict[str, list[float]] = {column: [] for column in columns}
    for images in columns.values():
        way(images, seconds)  # warms up
    before = _captured(model)
    with process.garbage_frozen():
        for _ in range(runs):
            for column, images in columns.items():
                count, took, each = way(images, seconds)
                rates[column].append(count / took)
                times[column] += each
    cost.captured = None if before is None else (_captured(model) or 0) - before
    for column in columns:
        cost.images_per_s[column] = round(statistics.median(rates[column]), 1)
        if times[column]:
            cost.p50_ms[column] = round(1000 * statistics.median(times[column]), 3)
            cost.p99_ms[column] = round(1000 * percentile(times[column], 0.99), 3)
    return cost


def command(
    model: Annotated[
        str,
        typer.Option(
            help="A size of RF-DETR-Seg or a builder of torchvision, with random weights, or a model of load."
        ),
    ] = ("rf-detr-seg-nano"),
    sizes: Annotated[int, typer.Option(help="Number of sizes.")] = 200,
    least: Annotated[int, typer.Option(help="Smallest side, in pixels.")] = 200,
    most: Annotated[int, typer.Option(help="Largest side, in pixels.")] = 900,
    runs: Annotated[int, typer.Option(help="Runs of each way on each column.")] = 5,
    seconds: Annotated[float, typer.Option(help="About how long a run takes.")] = 1.0,
    only: OnlyOption = None,
    out: ReportOption = None,
) -> None:
    """Time images of many sizes beside images of one size."""
    print_result(
        run(out, model=model, sizes=sizes, least=least, most=most, runs=runs, seconds=seconds, only=only or ())
    )


if __name__ == "__main__":
    start(command)
