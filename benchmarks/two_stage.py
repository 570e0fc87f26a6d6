"""Time torchvision's detectors unchanged, compiled, captured, rewritten, and in our engine.

All contenders get the same images, uint8 on the host, in one process and in turns. Their detections are compared with
torchvision's first. GPU work is counted last, because the profiler slows later launches.

    python -m benchmarks.two_stage --out benchmarks/results/rewrites_h200.json
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.command import DeviceOption, OnlyOption, ReportOption, SizeOption, check_names, start
from benchmarks.planted import plant_detector
from benchmarks.pooling import measure_pooling
from benchmarks.two_stage_contest import BASELINE, CONTENDERS, DetectorCost, Detectors, to_float
from maskjet.checks import check_count
from maskjet.cli.options import parse_size, print_result, progress
from maskjet.config import EngineConfig
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.host.process import convolutions_in_tf32
from maskjet.host.tables import shown
from maskjet.traffic import sample

SETTINGS = ("default", "stress")
"""The model's own thresholds, or a score threshold of 0, which makes every class of every proposal a candidate."""
CANDIDATES, SURVIVORS = 500, 60
_POOLED = ((1000, 7), (100, 14))  # boxes and bins of the box head and of the mask head
_IMAGES = 4


@dataclass(frozen=True, kw_only=True)
class TwoStageReport(measuring.MeasuredReport):
    """All measurements of a run."""

    measurements: Sequence[DetectorCost]
    """All costs, ordered by setting and contender, as in `SETTINGS` and `CONTENDERS`; last those of pooling."""
    model: str
    """Name of torchvision's builder."""
    size_hw: tuple[int, int]
    """(height, width) of the images, in pixels."""
    uses_tf32: bool
    """Whether convolutions in float32 rounded to TF32."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        header = ("setting", "contender", "p50 ms", "p95 ms", "speed-up", "found", "matched", "Δconf", "mask IoU min")
        rows: list[tuple[str, ...]] = [(*header, "GPU ms", "launches", "kernels", "waits")]
        for m in self.measurements:
            times = (f"{m.p50_ms:.2f}", f"{m.p95_ms:.2f}", f"{m.speedup:.2f}×")
            same = (f"{m.found:.1f}", f"{m.matched:.2%}", f"{m.largest_difference:.1e}", shown(m.smallest_iou, 4))
            work = (shown(m.gpu_ms, 2), shown(m.launches, 0), shown(m.kernels, 0), shown(m.waits, 0))
            rows.append((m.setting, m.contender, *times, *same, *work))
        return rows


def run(
    path: Path | None = None,
    *,
    model: str = "maskrcnn_resnet50_fpn",
    size_hw: tuple[int, int] = (800, 1333),
    settings: Sequence[str] = SETTINGS,
    runs: int = 30,
    only: Sequence[str] = (),
    device: str = "auto",
    uses_tf32: bool = True,
    on_progress: Callable[[], object] = lambda: None,
) -> TwoStageReport:
    """Compare, then time a detector with and without the rewrites.

    Args:
        model: Name of torchvision's builder.
        size_hw: (height, width) of the images, and of the model's input.
        settings: Some of `SETTINGS`.
        runs: Timed images of each contender, at least 1; slow contenders get fewer.
        only: Names of contenders; empty for all. The baseline always takes part.
        device: "auto", "cpu", "cuda" or "cuda:N".
        uses_tf32: Whether convolutions in float32 may round to TF32, PyTorch's default. If not, results differ only
            by the order of sums.
        path: A JSON file to write the report to, after each setting.
        on_progress: Called once a contender is compared, or left out.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The device is not available.
        MissingDependencyError: torchvision is not installed.
    """
    check_count("runs", runs)
    check_names(settings, SETTINGS, "settings")
    check_names(only, CONTENDERS)
    where = EngineConfig(device=device).resolve_device()
    with convolutions_in_tf32(uses_tf32):
        images = [np.array(sample(seed, size_hw=size_hw).image) for seed in range(_IMAGES)]
        planted = plant_detector(
            model,
            [to_float(image, where) for image in images],
            candidates=CANDIDATES,
            survivors=SURVIVORS,
            min_size=min(size_hw),
            max_size=max(size_hw),
        )
        notes, measurements = list[str](), list[DetectorCost]()
        wanted = [name for name in CONTENDERS if name in only or not only or name == BASELINE]
        result = TwoStageReport(
            machine=describe_machine(),
            measurements=measurements,
            notes=notes,
            model=model,
            size_hw=size_hw,
            uses_tf32=uses_tf32,
        )
        for setting in settings:
            if setting == "stress":
                planted.roi_heads.score_thresh = 0.0
            with Detectors(planted, images, where) as detectors:
                measurements += _measure(detectors, setting, wanted, runs, on_progress)
                notes += [f"{setting}: {note}" for note in [*detectors.notes, *detectors.slower_paths()]]
            result.write(path)
        if not only:
            measurements += [found for boxes, size in _POOLED for found in measure_pooling(boxes, size, runs, where)]
            result.write(path)
        return result


def _measure(
    detectors: Detectors, setting: str, names: Sequence[str], runs: int, on_progress: Callable[[], object]
) -> list[DetectorCost]:
    """Build the contenders, compare and time them."""
    for name in names:
        detectors.enter(name)
        on_progress()
    return detectors.measure(setting, runs)


def main(
    out: ReportOption = None,
    model: Annotated[str, typer.Option(help="Name of torchvision's builder.")] = "maskrcnn_resnet50_fpn",
    size: SizeOption = "1333x800",
    setting: Annotated[list[str] | None, typer.Option(help="default or stress; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(help="Timed images per contender; slow contenders get fewer.")] = 30,
    only: OnlyOption = None,
    device: DeviceOption = "auto",
    tf32: Annotated[bool, typer.Option(help="Let float32 convolutions round to TF32, PyTorch's default.")] = True,
) -> None:
    """Time a torchvision detector unchanged, compiled, with each rewrite, and in our engine."""
    settings = setting or SETTINGS
    with progress("preparing", len(settings) * len(only or CONTENDERS)) as advance:
        found = run(
            out,
            model=model,
            size_hw=parse_size(size),
            settings=settings,
            runs=runs,
            only=only or (),
            device=device,
            uses_tf32=tf32,
            on_progress=advance,
        )
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
