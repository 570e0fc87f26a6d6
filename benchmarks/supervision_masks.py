"""Time `Detections.to_supervision` with dense and compact masks, and measure their memory.

    python -m benchmarks.supervision_masks --out benchmarks/results/supervision_masks_cpu.json

Beside them supervision's own `CompactMask.from_coco_rle` over the masks' tight boxes. Nothing is timed before all
three are equal.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.command import ReportOption, SizesOption, start
from maskjet import load, traffic
from maskjet.checks import check_count
from maskjet.cli.options import parse_size, print_result
from maskjet.detections import Detections
from maskjet.errors import MaskjetError
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.masks import coco_rle

_SEED, _THRESHOLD = 3, 0.1  # a street with some 30 detections


@dataclass(frozen=True)
class MasksCost:
    """The cost of the masks of one frame, converted in one way."""

    frame: str
    """The frame's size and the number of masks."""
    way: str
    """What converts the masks, and to what."""
    p50_ms: float
    """Median CPU time."""
    held_mb: float
    """Memory that the result holds, in 10^6 bytes."""


@dataclass(frozen=True)
class MasksReport(measuring.MeasuredReport):
    """The costs; measurements are `MasksCost`."""

    measurements: Sequence[MasksCost]

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        costs = [(one.frame, one.way, f"{one.p50_ms:.2f}", f"{one.held_mb:.2f}") for one in self.measurements]
        return [("frame", "way", "p50, ms", "held, MB"), *costs]


def run(path: Path | None = None, *, sizes: Sequence[str] = ("1080p", "3840x2160"), runs: int = 20) -> MasksReport:
    """Convert the demo model's detections on a street of each size.

    Args:
        path: A JSON file to write the report to.
        sizes: Sizes of frames.
        runs: Timed conversions of each way, at least 1.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above.
        MaskjetError: Masks differ.
    """
    check_count("runs", runs)
    costs = []
    for size in sizes:
        image = traffic.sample(seed=_SEED, size_hw=parse_size(size)).image
        with load("demo", device="cpu", threshold=_THRESHOLD) as model:
            found = model.predict(image)
        for way, convert in _ways(found).items():
            if not np.array_equal(np.asarray(convert().mask), found.masks()):
                raise MaskjetError(f"Masks of {way!r} must equal masks(); nothing was timed.")
            times = []
            for _ in range(runs):
                begun = process_time()
                convert()
                times.append(1000 * (process_time() - begun))
            costs.append(MasksCost(f"{size}, {len(found)} masks", way, round(median(times), 3), _held_mb(convert)))
    report = MasksReport(describe_machine(), costs)
    report.write(path)
    return report


def _ways(found: Detections) -> dict[str, Callable[[], Any]]:
    from supervision.detection.compact_mask import CompactMask

    def convert_by_supervision() -> Any:
        theirs = found.to_supervision(masks=False)
        tight = np.array([coco_rle.to_xyxy(rle) for rle in found.rle or ()]) - [0, 0, 1, 1]
        theirs.mask = CompactMask.from_coco_rle(found.rle or [], tight, found.image_size)
        return theirs

    return {
        "dense": lambda: found.to_supervision(),
        "compact": lambda: found.to_supervision(masks="compact"),
        "CompactMask.from_coco_rle": convert_by_supervision,
    }


def _held_mb(convert: Callable[[], Any]) -> float:
    tracemalloc.start()
    _kept = convert()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(held / 1e6, 3)


def main(
    size: SizesOption = None,
    runs: Annotated[int, typer.Option(help="Timed conversions of each way.")] = 20,
    out: ReportOption = None,
) -> None:
    """Time to_supervision with dense and compact masks, and measure their memory."""
    print_result(run(out, sizes=tuple(size or ("1080p", "3840x2160")), runs=runs), to_stdout=True)


if __name__ == "__main__":
    start(main)
