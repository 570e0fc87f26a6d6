"""Time an exported detector in ONNX Runtime: unchanged, and rewritten by `optimize_onnx`.

Both run in one process, in turns, on the same images. The rewritten file is timed only if its outputs equal those of
the exported file bit for bit.

    python -m benchmarks.onnx_files --out benchmarks/results/rewrites_onnx_cpu.json
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from benchmarks.command import ReportOption, SizeOption, start
from benchmarks.contest import Contest, Entry
from benchmarks.planted import plant_detector
from benchmarks.two_stage import CANDIDATES, SURVIVORS
from benchmarks.two_stage_contest import to_float
from maskjet.checks import check_count
from maskjet.cli.options import parse_size, print_result
from maskjet.errors import InputError, SourceError, first_line
from maskjet.export.onnx_rewrites import optimize_onnx
from maskjet.host import measuring
from maskjet.host.extras import require
from maskjet.host.machine import describe_machine
from maskjet.traffic import sample

EXPORTED = "as exported"
"""Name of the baseline, the unchanged file."""
REWRITTEN = "rewritten"
"""Name of the file that `optimize_onnx` makes."""
_IMAGES = 3


@dataclass(frozen=True)
class FileCost:
    """Size and speed of one variant of a file."""

    variant: str
    """`EXPORTED` or `REWRITTEN`."""
    matched: int
    """Number of places rewritten."""
    nodes: int
    """Nodes in the file, including those inside If and Loop."""
    p50_ms: float
    """Median time of an image."""
    p95_ms: float
    """95th percentile of the time of an image."""
    speedup: float
    """Median time of the exported file divided by this one's."""


@dataclass(frozen=True, kw_only=True)
class OnnxReport(measuring.MeasuredReport):
    """Both variants of one file."""

    measurements: Sequence[FileCost]
    """The exported file first; the rewritten one only if something matched and its outputs are equal."""
    threads: int
    """Threads that ONNX Runtime uses within an op."""
    detections: Sequence[int]
    """Number of detections on each image."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per variant."""
        rows: list[tuple[str, ...]] = [("variant", "matched", "nodes", "p50 ms", "p95 ms", "speedup")]
        for m in self.measurements:
            times = (f"{m.p50_ms:.1f}", f"{m.p95_ms:.1f}", f"{m.speedup:.2f}×")
            rows.append((m.variant, str(m.matched), str(m.nodes), *times))
        return rows


def run(
    model: Path | None = None,
    path: Path | None = None,
    *,
    size_hw: tuple[int, int] = (256, 320),
    runs: int = 9,
    threads: int = 2,
) -> OnnxReport:
    """Time an exported detector, unchanged and rewritten.

    Args:
        model: An ONNX file with one input, a float32 image [3, H, W], exported with `dynamo=False`; None exports Mask
            R-CNN (ResNet-50) with random weights that finds about as many instances as in `benchmarks.two_stage`.
        path: A JSON file to write the report to.
        size_hw: (height, width) of the images, which are drawn streets.
        runs: Timed calls of each variant, at least 1.
        threads: Threads that ONNX Runtime uses within an op.

    Returns:
        The report, which prints as a table; notes say why the rewritten file is left out, if it is.

    Raises:
        InputError: runs is less than 1, or the model does not take such an image.
        SourceError: The file is missing or no ONNX model.
        MissingDependencyError: onnx-ir or onnxruntime is not installed.
    """
    check_count("runs", runs)
    streets = (np.array(sample(seed, size_hw=size_hw).image) for seed in range(_IMAGES))
    images = [to_float(street, torch.device("cpu")).numpy() for street in streets]
    with TemporaryDirectory() as folder:
        file = _export(Path(folder) / "detector.onnx", images) if model is None else model
        result = _time(file, images, runs, threads)
    result.write(path)
    return result


def _export(path: Path, images: Sequence[NDArray[np.float32]]) -> Path:
    seen = [torch.from_numpy(images[0])]
    sides = seen[0].shape[1:]
    planted = plant_detector(
        "maskrcnn_resnet50_fpn",
        seen,
        candidates=CANDIDATES,
        survivors=SURVIVORS,
        min_size=min(sides),
        max_size=max(sides),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns about torchvision's code
        torch.onnx.export(planted, (seen,), path, dynamo=False)
    return path


def _time(model: Path, images: Sequence[NDArray[np.float32]], runs: int, threads: int) -> OnnxReport:
    """Compare, then time the exported file and the rewritten one."""
    exported, notes = _open(model, threads), list[str]()
    with TemporaryDirectory() as folder:
        found = optimize_onnx(model, Path(folder) / "rewritten.onnx")
        rewritten = _open(Path(found.path), threads)
    nodes = {EXPORTED: sum(found.nodes_before.values()), REWRITTEN: sum(found.nodes_after.values())}
    matched = {EXPORTED: 0, REWRITTEN: found.matched}
    contest = Contest(images, partial(_detect, exported), torch.device("cpu"))
    contest.enter({EXPORTED: Entry(partial(_detect, exported), _share)})
    if not found.matched:
        notes.append(f"{REWRITTEN} left out: nothing matches")
    elif contest.enter({REWRITTEN: Entry(partial(_detect, rewritten), _share)}):
        notes.append(f"{REWRITTEN} left out: its outputs differ")
    times = contest.time(runs=runs)
    return OnnxReport(
        machine=describe_machine(),
        measurements=[
            FileCost(name, matched[name], nodes[name], each.p50_ms, each.p95_ms, times[EXPORTED].p50_ms / each.p50_ms)
            for name, each in times.items()
        ],
        notes=notes,
        threads=threads,
        detections=[len(_detect(exported, image)[0]) for image in images],
    )


def _open(file: Path, threads: int) -> Any:
    onnxruntime = require("onnxruntime", extra="bench", purpose="Timing ONNX files")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only; ONNX Runtime warns of every initializer it drops
    try:
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has a class per error code
        raise SourceError(f"{str(file)!r} can't be run by ONNX Runtime: {first_line(error)}") from error


def _detect(session: Any, image: NDArray[np.float32]) -> list[NDArray[Any]]:
    inputs = session.get_inputs()
    try:
        (given,) = inputs
        found: list[NDArray[Any]] = session.run(None, {given.name: image})
    except Exception as error:
        size = "×".join(map(str, image.shape))
        raise InputError(f"model must take one image of {size}, got {first_line(error)}.") from error
    return found


def _share(_image: object, expected: Sequence[NDArray[Any]], actual: Sequence[NDArray[Any]]) -> float:
    return 0.0 if all(map(np.array_equal, expected, actual)) else math.inf


def main(
    model: Annotated[
        Path | None,
        typer.Argument(help="A torchvision detector, exported for images of --size; if not given, one is made."),
    ] = None,
    out: ReportOption = None,
    size: SizeOption = "320x256",
    runs: Annotated[int, typer.Option(help="Timed images per variant.")] = 9,
    threads: Annotated[int, typer.Option(help="Threads of ONNX Runtime.")] = 2,
) -> None:
    """Time an exported detector in ONNX Runtime, unchanged and rewritten."""
    print_result(run(model, out, size_hw=parse_size(size), runs=runs, threads=threads), to_stdout=True)


if __name__ == "__main__":
    start(main)
