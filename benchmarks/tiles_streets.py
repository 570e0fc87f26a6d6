"""Tiles beside no tiling on many drawn streets: mask AP by size of things, with intervals of the difference.

    python -m benchmarks.tiles_streets --out benchmarks/results/tiles_streets_4k_cpu.json
    python -m benchmarks.tiles_streets --size 2560x1440 --tile 384 --streets 40

Intervals are those of a paired bootstrap over streets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.command import ReportOption, start
from benchmarks.tiles import CATEGORY_IDS, FIRST_SEED, LOWERED
from maskjet import load, traffic
from maskjet.checks import check_count
from maskjet.cli.options import parse_size, print_result
from maskjet.detections import Detections
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.host.tables import shown
from maskjet.jit import Ints
from maskjet.parity.coco import METRICS, Scores
from maskjet.parity.coco_files import load_library
from maskjet.traffic.dataset import CATEGORIES, annotate

_RESAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """One average precision of masks; None where the truth, or that of a draw, has nothing of its size."""

    metric: str
    """One of `parity.coco.METRICS`."""
    untiled: float | None
    """AP without tiles."""
    tiled: float | None
    """AP with tiles and the whole image."""
    low: float | None
    """Lower end of the 95 % interval of the difference, tiled minus untiled."""
    high: float | None
    """Upper end of that interval."""


@dataclass(frozen=True, kw_only=True)
class StreetsReport(measuring.MeasuredReport):
    """Both ways on the same streets."""

    measurements: Sequence[Score]
    size_hw: tuple[int, int]
    """Height and width of streets in pixels."""
    tile: int
    """Side of a tile in pixels."""
    streets: int
    """Number of streets."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per metric."""
        header = ("mask AP", "no tiling", "tiles", "difference from", "to")
        return [header, *((name, *(shown(v, 4) for v in values)) for name, *values in map(astuple, self.measurements))]


def _make_score(found: Sequence[Detections], truths: Sequence[list[Any]]) -> Callable[[Ints], NDArray[np.float64]]:
    """Make the function from drawn streets, in ascending order, to values of `METRICS`, NaN for none."""

    @cache
    def match(number: int, copy: int) -> Any:
        image_id = 1 + number + copy * len(found)
        image = {"id": image_id, "height": found[number].image_size[0], "width": found[number].image_size[1]}
        truth = [{**entry, "image_id": image_id} for entry in truths[number]]
        made = load_library().StreamingEval(CATEGORIES, "segm")
        made.update([image], truth, found[number].to_coco(image_id, CATEGORY_IDS, kind="segm"))
        return made

    def score(draw: Ints) -> NDArray[np.float64]:
        copies = np.arange(len(draw)) - np.searchsorted(draw, draw)  # 0, 1 .. of each street
        evaluator = load_library().StreamingEval.merge(list(map(match, draw.tolist(), copies.tolist()))).finalize()
        evaluator.accumulate()
        return np.array([*Scores(evaluator).metrics().values()], float)[: len(METRICS)]

    return score


def run(path: Path | None, size: str, tile: int, streets: int) -> StreetsReport:
    """Score the demo model with tiles and without; raises InputError for a wrong argument."""
    check_count("streets", streets)
    size_hw, truths, found = parse_size(size), [], []
    with load("demo", device="cpu") as model:
        for number in range(streets):
            scene = traffic.sample(FIRST_SEED + number, size_hw=size_hw)
            truths.append(list(annotate(scene, number, 1)))
            found.append([model.predict(scene.image, threshold=LOWERED, tile=each) for each in (None, tile)])
    untiled, tiled = (_make_score(each, truths) for each in zip(*found, strict=True))
    draws = np.sort(np.random.default_rng(0).integers(0, streets, (_RESAMPLES, streets)), axis=1)
    bounds = np.quantile([tiled(draw) - untiled(draw) for draw in draws], (0.025, 0.975), axis=0)
    values = np.array([untiled(np.arange(streets)), tiled(np.arange(streets)), *bounds])
    scores = list(map(Score, METRICS, *([None if np.isnan(v) else float(v) for v in row] for row in values)))
    report = StreetsReport(describe_machine(), measurements=scores, size_hw=size_hw, tile=tile, streets=streets)
    report.write(path)
    return report


def main(
    size: Annotated[str, typer.Option(help="312, 720p, 1080p or WIDTHxHEIGHT.")] = "3840x2160",
    tile: Annotated[int, typer.Option(help="Side of a tile in pixels.")] = 640,
    streets: Annotated[int, typer.Option(help="Number of streets.")] = 60,
    out: ReportOption = None,
) -> None:
    """Score tiles beside no tiling on many drawn streets, with intervals of the difference."""
    print_result(run(out, size, tile, streets), to_stdout=True)


if __name__ == "__main__":
    start(main)
