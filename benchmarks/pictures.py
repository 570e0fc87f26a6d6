"""Time drawing on a CPU core: masks, boxes and labels, redaction and cutouts, beside supervision's annotators.

Before anything is timed, masks must be painted as the op's reference paints them. All ways take turns. `--only files`
times video files to annotated MP4 instead, with all cores and a GPU if there is one; see `picture_files`.

    taskset -c 0 python -m benchmarks.pictures --out benchmarks/results/pictures.json
    python -m benchmarks.pictures --only files --out benchmarks/results/picture_files_h200.json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any

import cv2
import numpy as np
import torch
import typer
from numpy.typing import NDArray

from benchmarks.command import DeviceOption, OnlyOption, ReportOption, check_names, start
from benchmarks.peers.loading import load_module
from benchmarks.picture_files import run_files
from benchmarks.planted import plant_network
from maskjet import load, ops, traffic
from maskjet.checks import check_count
from maskjet.cli.options import print_result
from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.drawing import Cutout, DrawStyle, Painter, Redaction
from maskjet.errors import MaskjetError, UnsupportedError
from maskjet.host import measuring, process
from maskjet.host.machine import describe_machine
from maskjet.host.timing import percentile
from maskjet.model import Model
from maskjet.sources.frames import Frame
from maskjet.spec import SPECS

Image = NDArray[np.uint8]
_STYLES: Mapping[str, DrawStyle | Redaction | Cutout] = {
    "a copy alone": DrawStyle(boxes=False, labels=False, scores=False, masks=False, outlines=False),
    "masks and outlines": DrawStyle(boxes=False, labels=False, scores=False),
    "boxes and labels": DrawStyle(masks=False, outlines=False),
    "all": DrawStyle(),
    "redacted, black": Redaction(),
    "redacted, mosaic": Redaction(replace_with="mosaic"),
    "redacted, blur": Redaction(replace_with="blur"),
    "cutout, black": Cutout(),
}
_PEERS = {"supervision, dense masks": "dense", "supervision, compact masks": "compact"}
_FILES = "files"
_RAGGED = 33  # masks of an untrained network, each of many islands
_DEMO_SEED = 3  # a street with 12 detections


@dataclass(frozen=True)
class PictureCost:
    """The time of one way to draw a frame, copied first, as it is by an output."""

    frame: str
    """The frame's size and masks."""
    way: str
    """What is drawn, or the peer that draws."""
    p50_ms: float
    """Median CPU time of all threads."""
    p95_ms: float
    """95th percentile of it."""


@dataclass(frozen=True)
class PicturesReport(measuring.MeasuredReport):
    """The times of drawing; measurements are `PictureCost`."""

    runs: int = 0
    """Timed frames of each way."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per way."""
        costs = [(one.frame, one.way, f"{one.p50_ms:.3f}", f"{one.p95_ms:.3f}") for one in self.measurements]
        return [("frame", "way", "p50, ms", "p95, ms"), *costs]


def run(path: Path | None = None, *, runs: int = 100, only: tuple[str, ...] = ()) -> PicturesReport:
    """Draw frames in turns in all ways.

    Args:
        path: A JSON file to write the report to.
        runs: Timed frames of each way, at least 1.
        only: Ways; empty for all that can run here.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above.
        MaskjetError: Masks are not painted as the reference paints them.
    """
    check_count("runs", runs)
    check_names(only, (*_STYLES, *_PEERS))
    cv2.setNumThreads(1)
    costs: list[PictureCost] = []
    notes: list[str] = []
    for name, (image, found) in {"1080p, 12 masks": _street(), f"720p, {_RAGGED} ragged masks": _ragged()}.items():
        _check(image, found)
        ways = {way: _draw_in(style, image, found) for way, style in _STYLES.items()}
        try:
            ways |= {way: _draw_by_supervision(image, found, masks) for way, masks in _PEERS.items()}
        except UnsupportedError as error:
            notes.append(f"supervision left out: {error}")
        times = _time({way: draw for way, draw in ways.items() if not only or way in only}, runs)
        for way, each in times.items():
            costs.append(PictureCost(name, way, round(median(each), 4), round(percentile(each, 0.95), 4)))
    found_costs = PicturesReport(describe_machine(), costs, [*dict.fromkeys(notes)], runs)
    found_costs.write(path)
    return found_costs


def _street() -> tuple[Image, Detections]:
    image = traffic.sample(seed=_DEMO_SEED, size_hw=(1080, 1920)).image
    with load("demo") as model:
        return image, model.predict(image)


def _ragged() -> tuple[Image, Detections]:
    frames = [traffic.sample(seed=seed, size_hw=(720, 1280)).image for seed in range(4)]
    with Model(plant_network(SPECS["rf-detr-seg-nano"], frames, survivors=_RAGGED), EngineConfig()) as model:
        return frames[0], model.predict(frames[0])


def _check(image: Image, found: Detections) -> None:
    given: dict[str, Any] = {
        "image": torch.from_numpy(image),
        "masks": found.rle,
        "colours": torch.arange(3 * len(found), dtype=torch.uint8).view(-1, 3),
        "opacity": 108,
        "line": 2,
    }
    if not torch.equal(ops.paint(**given), ops.paint(**given, implementation="reference")):
        raise MaskjetError("Masks must be painted as the reference of ops.paint paints them; nothing was timed.")


def _draw_in(style: DrawStyle | Redaction | Cutout, image: Image, found: Detections) -> Callable[[], object]:
    painter, frame = Painter(style), Frame(0, 0.0, image, "a.mp4", "a.mp4#0")
    return lambda: painter.paint(frame, found)


def _draw_by_supervision(image: Image, found: Detections, kind: Any) -> Callable[[], object]:
    """Its usual two annotators, on masks of a kind that are there already, as its users' are."""
    supervision = load_module("supervision", "supervision")
    masks, labels, theirs = supervision.MaskAnnotator(), supervision.LabelAnnotator(), found.to_supervision(masks=kind)
    texts = [f"{name} {score:.2f}" for name, score in zip(found.class_name, found.confidence, strict=True)]
    return lambda: labels.annotate(masks.annotate(image.copy(), theirs), theirs, texts)


def _time(ways: Mapping[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Milliseconds of CPU time of each run, by way: others on the machine do not count."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    with process.garbage_frozen():
        for number in range(runs + 1):  # the first warms up
            for way, draw in ways.items():
                begun = process_time()
                draw()
                if number:
                    times[way].append(1000 * (process_time() - begun))
    return times


def main(
    runs: Annotated[int | None, typer.Option(help="Timed frames of each way, 100; or runs of files, 3.")] = None,
    only: OnlyOption = None,
    device: DeviceOption = "auto",
    seconds: Annotated[float, typer.Option(help="Of files: the time of a run.")] = 2.0,
    out: ReportOption = None,
) -> None:
    """Time drawing on a CPU core, or with --only files video files to MP4, beside supervision's annotators."""
    if only == [_FILES]:
        print_result(run_files(out, device=device, runs=3 if runs is None else runs, seconds=seconds), to_stdout=True)
    else:
        print_result(run(out, runs=100 if runs is None else runs, only=tuple(only or ())), to_stdout=True)


if __name__ == "__main__":
    start(main)
