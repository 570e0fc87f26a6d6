"""Filters of `resample` on the demo model: average precision on drawn streets of three sizes, and time per frame.

    python -m benchmarks.resampling --out benchmarks/results/resampling_cpu.json

The demo model was trained on frames resized without antialias, as rfdetr's `predict` does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Annotated, Any, get_args

import torch
import typer

from benchmarks.command import DeviceOption, ReportOption, start
from benchmarks.streets import Streets
from benchmarks.tiles import CATEGORY_IDS
from maskjet import load, ops
from maskjet.checks import check_count
from maskjet.cli.options import print_result
from maskjet.detections.json_types import CocoKind
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.ops.preprocess import Filter
from maskjet.parity.coco import evaluate
from maskjet.spec import IMAGENET_MEAN, IMAGENET_STD

_SIZES_HW = {"720p": (720, 1280), "1080p": (1080, 1920), "4K": (2160, 3840)}
_INPUT_HW = (240, 240)  # the demo model's
_LEAST = 0.001  # confidence that scored detections exceed, as in `maskjet val`


@dataclass(frozen=True)
class FilterCost:
    """One filter on frames of one size."""

    size: str
    """Name of the frames' size."""
    filter: str
    """The filter."""
    segm: Mapping[str, float | None]
    """COCO's average precisions of masks, by the names of `parity.coco.METRICS`."""
    bbox: Mapping[str, float | None]
    """Those of boxes."""
    preprocess_ms: float
    """Median time of preprocessing a frame in memory."""


@dataclass(frozen=True, kw_only=True)
class ResamplingReport(measuring.MeasuredReport):
    """All filters on streets of all sizes; measurements are `FilterCost`."""

    measurements: Sequence[FilterCost]
    streets: int
    """Number of streets of each size."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per size and filter."""
        rows: list[tuple[str, ...]] = [("frames", "resample", "mask AP", "small", "box AP", "preprocess, ms")]
        for each in self.measurements:
            scores = (each.segm["ap"], each.segm["ap_small"], each.bbox["ap"])
            shown = ("-" if score is None else f"{score:.4f}" for score in scores)
            rows.append((each.size, each.filter, *shown, f"{each.preprocess_ms:.2f}"))
        return rows


def measure(streets: int, device: str) -> ResamplingReport:
    """Score and time each filter on as many streets of each size."""
    measurements = []
    models = {name: load("demo", device=device, threshold=_LEAST, resample=name) for name in get_args(Filter)}
    for size, size_hw in _SIZES_HW.items():
        drawn = Streets(streets, size_hw)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
        times: dict[str, list[float]] = {name: [] for name in models}
        for number, image in enumerate(drawn.read()):
            frame = torch.from_numpy(image).to(device)
            for name, model in models.items():
                detections = model.predict(image)
                kinds = (detections.to_coco(number, CATEGORY_IDS, kind=kind) for kind in get_args(CocoKind))
                found[name] += [mask | box for mask, box in zip(*kinds, strict=True)]
                began = perf_counter()
                inputs = ops.preprocess(
                    frame,
                    size=_INPUT_HW,
                    mean=IMAGENET_MEAN,
                    std=IMAGENET_STD,
                    resample=name,
                )
                inputs[0, 0, 0, 0].item()  # waits for a GPU
                times[name].append(1e3 * (perf_counter() - began))
        scores = {(each.variant, each.kind): each.metrics for each in evaluate(drawn.truth(), found).measurements}
        for name in models:
            both = scores[name, "segm"], scores[name, "bbox"]
            measurements.append(FilterCost(size, name, *both, median(times[name])))
    return ResamplingReport(describe_machine(), measurements=measurements, streets=streets)


def main(
    streets: Annotated[int, typer.Option(help="Streets of each size.")] = 100,
    device: DeviceOption = "cpu",
    out: ReportOption = None,
) -> None:
    """Score and time each filter of `resample` with the demo model."""
    check_count("streets", streets)
    report = measure(streets, device)
    report.write(out)
    print_result(report, to_stdout=True)


if __name__ == "__main__":
    start(main)
