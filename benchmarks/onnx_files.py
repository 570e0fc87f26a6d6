"""What the ONNX rewrites buy in ONNX Runtime: an exported detector as it is, with each rewrite alone, and with all.

All variants run in one process, in turns, on the same images. A variant whose outputs differ from those of the file as
exported in a single bit is not timed.

    python -m benchmarks.onnx_files detector.onnx --out benchmarks/results/rewrites_onnx_cpu.json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from benchmarks.command import ReportOption, SizeOption, start
from benchmarks.timing import take_turns
from maskjet.cli.options import parse_size, print_result, progress
from maskjet.errors import InputError, SourceError, first_line
from maskjet.extras import require
from maskjet.onnx import REWRITES, optimize_onnx
from maskjet.parity import report
from maskjet.parity.machine import describe_machine
from maskjet.timing import percentile

EXPORTED = "as exported"
"""The baseline's name."""
VARIANTS: Mapping[str, Sequence[str]] = {
    "nms_top_k": ("nms_top_k",),
    "level_pooling": ("level_pooling",),
    "loop_concat": ("loop_concat",),
    "loop_concat + mask_paste": ("loop_concat", "mask_paste"),
    "all": REWRITES,
}
"""By name, the rewrites applied; "mask_paste" needs "loop_concat" before it."""
_IMAGES = 3
_Images: TypeAlias = Sequence[NDArray[np.float32]]


@dataclass(frozen=True)
class Measurement:
    """One variant."""

    variant: str
    """`EXPORTED`, or a key of `VARIANTS`."""
    matched: int
    """Places rewritten."""
    nodes: int
    """In the file, those inside of If and Loop too."""
    p50_ms: float
    """Per image."""
    p95_ms: float
    """Per image."""
    speedup: float
    """The median as exported over this one."""


@dataclass(frozen=True, kw_only=True)
class Report(report.Report):
    """All variants of one file."""

    measurements: Sequence[Measurement]
    """As exported first, then in the order of `VARIANTS`."""
    threads: int
    """Of ONNX Runtime, within an op."""
    detections: Sequence[int]
    """Found on each image."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per variant."""
        rows: list[tuple[str, ...]] = [("variant", "matched", "nodes", "p50 ms", "p95 ms", "speedup")]
        for m in self.measurements:
            times = (f"{m.p50_ms:.1f}", f"{m.p95_ms:.1f}", f"{m.speedup:.2f}×")
            rows.append((m.variant, str(m.matched), str(m.nodes), *times))
        return rows


def run(
    model: Path,
    path: Path | None = None,
    *,
    size_hw: tuple[int, int] = (256, 320),
    runs: int = 9,
    threads: int = 2,
    on_progress: Callable[[], object] = lambda: None,
) -> Report:
    """Time an exported detector with and without the rewrites.

    Args:
        model: An ONNX file with one input, a float32 image [3, H, W], exported with `dynamo=False`.
        path: A JSON file to write the report to.
        size_hw: (height, width) of the images, of uniform noise.
        runs: Timed calls of each variant, at least 1.
        threads: Of ONNX Runtime, within an op.
        on_progress: Called once a variant is compared, or left out.

    Returns:
        The report, which prints as a table. A variant without a match, or with other outputs, is left out and noted.

    Raises:
        InputError: runs is less than 1, or the model does not take such an image.
        SourceError: The file is missing or no ONNX model.
        MissingDependencyError: onnx-ir or onnxruntime is not installed.
    """
    report.check_runs(runs)
    generator = np.random.default_rng(0)
    images = [generator.random((3, *size_hw), dtype=np.float32) for _ in range(_IMAGES)]
    contest = _Contest(model, images, threads)
    for name in VARIANTS:
        contest.enter(name)
        on_progress()
    calls = {name: _as_call(session, images) for name, session in contest.sessions.items()}
    times_ms = take_turns(calls, runs=runs, device=torch.device("cpu"))
    baseline = percentile(times_ms[EXPORTED], 0.5)
    measurements = []
    for name, times in times_ms.items():
        p50, p95 = percentile(times, 0.5), percentile(times, 0.95)
        measurements.append(Measurement(name, contest.matched[name], contest.nodes[name], p50, p95, baseline / p50))
    result = Report(
        machine=describe_machine(),
        measurements=measurements,
        notes=contest.notes,
        threads=threads,
        detections=[len(outputs[0]) for outputs in contest.expected],
    )
    result.write(path)
    return result


class _Contest:
    """The variants that find the same as the file as exported."""

    def __init__(self, model: Path, images: _Images, threads: int) -> None:
        self._model, self._images, self._threads = model, images, threads
        self.sessions = {EXPORTED: _open(model, threads)}
        self.expected = _detect(self.sessions[EXPORTED], images)
        self.matched = {EXPORTED: 0}
        self.nodes = {EXPORTED: 0}
        self.notes: list[str] = []

    def enter(self, name: str) -> None:
        """Rewrite the file as a variant; note why if it does not take part."""
        with TemporaryDirectory() as folder:
            file = Path(folder) / "variant.onnx"
            found = optimize_onnx(self._model, file, rewrites=VARIANTS[name])
            self.nodes[EXPORTED] = sum(found.nodes_before.values())
            if not any(outcome.matched for outcome in found.outcomes):
                self.notes.append(f"{name} left out: nothing matches")
                return
            session = _open(file, self._threads)
        if not _are_equal(self.expected, _detect(session, self._images)):
            self.notes.append(f"{name} left out: its outputs differ")
            return
        self.sessions[name] = session
        self.matched[name] = sum(outcome.matched for outcome in found.outcomes)
        self.nodes[name] = sum(found.nodes_after.values())


def _open(file: Path, threads: int) -> Any:
    onnxruntime = require("onnxruntime", extra="bench", purpose="Timing ONNX files")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors: it warns of every initializer it drops
    try:
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it has a class for each of its codes
        raise SourceError(f"{str(file)!r} can't be run by ONNX Runtime: {first_line(error)}") from error


def _detect(session: Any, images: _Images) -> list[list[NDArray[Any]]]:
    inputs = session.get_inputs()
    try:
        (given,) = inputs
        return [session.run(None, {given.name: image}) for image in images]
    except Exception as error:
        size = "×".join(map(str, images[0].shape))
        raise InputError(f"model must take one image of {size}, got {first_line(error)}.") from error


def _are_equal(expected: Sequence[Sequence[NDArray[Any]]], actual: Sequence[Sequence[NDArray[Any]]]) -> bool:
    pairs = zip(expected, actual, strict=True)
    return all(np.array_equal(one, other) for two in pairs for one, other in zip(*two, strict=True))


def _as_call(session: Any, images: _Images) -> Callable[[int], object]:
    name = session.get_inputs()[0].name
    return lambda number: session.run(None, {name: images[number % len(images)]})


def main(
    model: Annotated[Path, typer.Argument(help="An export of a torchvision detector, for images of that size.")],
    out: ReportOption = None,
    size: SizeOption = "320x256",
    runs: Annotated[int, typer.Option(help="Timed images of each variant.")] = 9,
    threads: Annotated[int, typer.Option(help="Of ONNX Runtime.")] = 2,
) -> None:
    """Run an exported detector in ONNX Runtime as it is, with each rewrite, and with all."""
    with progress("comparing", len(VARIANTS)) as advance:
        found = run(model, out, size_hw=parse_size(size), runs=runs, threads=threads, on_progress=advance)
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
