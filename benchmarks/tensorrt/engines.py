"""Time engines of TensorRT 8.6 beside fused kernels and `torch.compile`, and compare what they find with float32's.

`bench.cpp` builds and runs the engines, which are kept in --folder; benchmarks/tensorrt.md says how to bring TensorRT.

    python -m benchmarks.tensorrt.engines tensorrt/ --size rf-detr-seg-nano --batch 1 --batch 16 --out report.json
    python -m benchmarks.tensorrt.engines tensorrt/ --stage build --level 0 --jobs 4
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
import typer
from torch import Tensor

from benchmarks import network
from benchmarks.command import ReportOption, check_names, start
from benchmarks.streets import Streets
from benchmarks.study_parts import PARTS, SIZE_HW
from benchmarks.variants import DetectorVariant, write_variant
from maskjet.checks import check_count
from maskjet.cli.options import print_result
from maskjet.errors import UnsupportedError
from maskjet.export import export
from maskjet.host import measuring
from maskjet.host.files import write_json
from maskjet.host.machine import describe_machine
from maskjet.host.process import convolutions_in_tf32
from maskjet.networks.exported.metadata import OUTPUTS
from maskjet.networks.rfdetr import RFDETR, NetworkOutput
from maskjet.parity.check import Agreement, check
from maskjet.parity.record import Record, read_record
from maskjet.spec import SPECS, ModelSpec

_IMAGES = 64


def ask(program: Path, *words: object) -> dict[str, Any]:
    """Run bench.cpp; returns the JSON that it prints, or raises UnsupportedError with the end of its errors."""
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "no version information" not in line]  # of empty libraries
        lines = [f"exit code {done.returncode}", *said[-3:]]
        raise UnsupportedError(f"TensorRT must {words[0]} the engine: {' | '.join(lines)}")
    return cast(dict[str, Any], json.loads(done.stdout))


def compile_program(tensorrt: Path, folder: Path) -> Path:
    """Compile bench.cpp with TensorRT's include/ and lib/, Triton's headers of CUDA, and PyTorch's CUDA runtime."""
    packages, program, libraries = Path(torch.__file__).parents[1], folder.absolute() / "bench", tensorrt / "lib"
    runtimes = sorted(map(str, packages.glob("nvidia/*/lib/libcudart.so.*")))
    command = ["g++", "-O2", "-std=c++17", str(Path(__file__).with_name("bench.cpp")), "-o", str(program)]
    command += [f"-I{each}" for each in (tensorrt / "include", packages / "triton/backends/nvidia/include")]
    command += [f"-L{libraries}", "-l:libnvinfer.so.8", "-l:libnvonnxparser.so.8", *runtimes[-1:]]
    folders = [str(libraries.absolute()), *(str(Path(each).parent) for each in runtimes[-1:])]
    # An rpath of the old kind also serves the libraries that TensorRT loads, such as its builder's resources.
    command += [f"-Wl,--disable-new-dtags,-rpath,{':'.join(folders)}", "-Wl,--allow-shlib-undefined"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnsupportedError(f"g++ must compile bench.cpp with {str(tensorrt)!r}: {done.stderr.strip()[:1000]}")
    return program


@dataclass(frozen=True)
class Engine:
    """An engine to build."""

    network: str
    """Name of the network, whose weights are those of the parity study."""
    batch: int
    """Images per run."""
    level: int
    """The builder's optimisation level, 0 to 5."""
    precision: str
    """What the builder may choose: "fp16" or "fp32"."""
    is_free: bool = False
    """Whether the ONNX file's batch is free."""

    def __str__(self) -> str:
        return f"{self.network}, batch {self.batch}{' (free)' * self.is_free}, level {self.level}, {self.precision}"

    def path(self, folder: Path) -> Path:
        """The engine's file; its name says all of it."""
        return folder / ("-".join(map(str, vars(self).values())) + ".engine")

    def build(self, program: Path, folder: Path) -> dict[str, Any]:
        """Export the network and build the engine, unless it is there; returns what `bench build` printed."""
        about = self.path(folder).with_suffix(".json")
        if not about.exists():
            planted = PARTS[self.network].make_network(Streets(_IMAGES, SIZE_HW))
            with TemporaryDirectory() as temporary:
                file = export(planted, Path(temporary, "a.onnx"), batch=None if self.is_free else self.batch)
                words = (file.path, self.path(folder), self.batch, self.level, self.precision)
                write_json(about, ask(program, "build", *words))
        return cast(dict[str, Any], json.loads(about.read_text()))


class EngineNetwork(RFDETR):
    """Runs an engine, by `bench detect` in another process, in place of a network."""

    def __init__(self, spec: ModelSpec, process: subprocess.Popen[Any], batch: int) -> None:
        super().__init__(spec)
        self._pipes: tuple[Any, Any] = (process.stdin, process.stdout)
        self._batch = batch

    def __deepcopy__(self, _: object) -> EngineNetwork:
        return self  # pipes can't be copied

    def forward(self, images: Tensor) -> NetworkOutput:
        """Run the engine on up to its batch of images, filled up with zeros."""
        spec, stdin, stdout = self.spec, *self._pipes
        given = np.zeros((self._batch, *images.shape[1:]), np.float32)
        given[: len(images)] = images.cpu().numpy()
        stdin.write(given.tobytes())
        stdin.flush()
        found: dict[str, Tensor | None] = {OUTPUTS[2]: None}
        sizes = zip(OUTPUTS[: 2 + spec.has_masks], ((spec.class_logits,), (4,), spec.mask_hw), strict=False)
        for name, size in sorted(sizes):
            shape = (self._batch, spec.queries, *size)
            values = np.frombuffer(stdout.read(4 * int(np.prod(shape))), np.float32).reshape(shape)
            found[name] = torch.from_numpy(values[: len(images)].copy()).to(images.device)
        return NetworkOutput(**found)  # type: ignore[arg-type]


@dataclass(frozen=True)
class EngineCost:
    """One engine beside the same network in maskjet."""

    engine: Engine
    """The engine."""
    build: dict[str, Any]
    """TensorRT's version, seconds of the build, and the engine's MB."""
    times: Sequence[dict[str, Any]]
    """Milliseconds of a replay, before and after maskjet's were timed: p5, p50, p95; and the graph's nodes."""
    maskjet_ms: dict[str, float]
    """Median milliseconds of a replay by runtime: fused, and compiled."""
    found: Agreement
    """The engine's detections above 0.4 against float32's."""
    fused_found: Agreement
    """Those of fused kernels."""


@dataclass(frozen=True, kw_only=True)
class EngineReport(measuring.MeasuredReport):
    """All engines."""

    measurements: Sequence[EngineCost]

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then a row per engine and runtime."""
        rows: list[tuple[str, ...]] = [("network", "batch", "runtime", "ms", "again", "matched", "mask IoU", "build")]
        for m in self.measurements:
            head, first, again = (m.engine.network, str(m.engine.batch)), *(f"{t['p50_ms']:.3f}" for t in m.times)
            name = f"TensorRT {m.build['tensorrt']}, level {m.engine.level}, {m.engine.precision}"
            rows.append((*head, name, first, again, *_shown(m.found), f"{m.build['build_s']:.0f} s"))
            for runtime, ms in m.maskjet_ms.items():
                shares = _shown(m.fused_found) if runtime == "fused" else ("", "")
                rows.append((*head, runtime, f"{ms:.3f}", "", *shares, ""))
        return rows


def _shown(found: Agreement) -> tuple[str, str]:
    total = found.matched + found.dropped + found.added
    return f"{found.matched} of {total}", "-" if found.mean_mask_iou is None else f"{found.mean_mask_iou:.4f}"


def build_all(engines: Sequence[Engine], program: Path, folder: Path, jobs: int) -> list[str]:
    """Build engines, some at once, printing a line each; returns the lines of those that can't be built."""
    check_count("jobs", jobs)
    refused, threads = [], max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        pending = {pool.submit(engine.build, program, folder): engine for engine in engines}
        for done in as_completed(pending):
            try:
                line = f"{pending[done]}: {done.result()}"
            except UnsupportedError as error:
                refused.append(line := f"{pending[done]}: {error}")
            print(line, flush=True)
    return refused


def measure(engine: Engine, program: Path, folder: Path, runs: int) -> EngineCost:
    """Time an engine that was built, and maskjet's runtimes, and compare their detections with float32's."""
    path, part, only = engine.path(folder), PARTS[engine.network], ("fused", "compiled")
    times = [ask(program, "time", path, runs)]
    ours = network.run(sizes=[engine.network], batches=[engine.batch], only=only, runs=runs).measurements
    times.append(ask(program, "time", path, runs))
    streets = Streets(_IMAGES, SIZE_HW)
    images = [(streets.name(number), image) for number, image in enumerate(streets.read())]
    planted, (exact, _, fused) = part.make_network(streets), part.variants
    by_engine = DetectorVariant("engine", exact.config, batch=engine.batch, threshold=exact.threshold)
    records: list[Record] = []
    with (
        TemporaryDirectory() as temporary,
        convolutions_in_tf32(False),
        subprocess.Popen([program, "detect", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        run = EngineNetwork(planted.spec, process, engine.batch)
        for variant, used in ((exact, planted), (by_engine, run), (fused, planted)):
            file = Path(temporary, f"{len(records)}.jsonl")
            write_variant(file, variant, used, images)
            records.append(read_record(file))
    found = [check(records[0], record).measurements[0] for record in records[1:]]
    return EngineCost(engine, engine.build(program, folder), times, {each.runtime: each.ms for each in ours}, *found)


def main(
    tensorrt: Annotated[Path, typer.Argument(help="A folder with TensorRT's include/ and lib/.")],
    out: ReportOption = None,
    folder: Annotated[Path, typer.Option(help="Where engines are kept.")] = Path("out/tensorrt"),
    size: Annotated[list[str] | None, typer.Option(help="A network; repeatable.  [default: all ten]")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Images per run; repeatable.  [default: 1]")] = None,
    level: Annotated[int, typer.Option(help="The builder's level, 0 to 5: higher ones take longer.")] = 3,
    precision: Annotated[Literal["fp16", "fp32"], typer.Option(help="The builder's choice of types.")] = "fp16",
    free: Annotated[bool, typer.Option("--free", help="Build from ONNX files of a free batch.")] = False,
    stage: Annotated[Literal["all", "build"], typer.Option(help="Build only, or measure, too.")] = "all",
    jobs: Annotated[int, typer.Option(help="Engines built at once; they disturb each other's timing.")] = 1,
    runs: Annotated[int, typer.Option(help="Timed replays of each.")] = 200,
) -> None:
    """Build engines of TensorRT 8.6, time them beside fused kernels and torch.compile, and compare detections."""
    check_names(size or (), SPECS, "size")
    check_count("runs", runs)
    folder.mkdir(parents=True, exist_ok=True)
    program = compile_program(tensorrt, folder)
    engines = [Engine(*each, level, precision, free) for each in product(size or [*SPECS], batch or [1])]
    refused = build_all(engines, program, folder, jobs)
    if stage == "build":
        return
    report = EngineReport(machine=describe_machine(), measurements=(costs := list[EngineCost]()), notes=refused)
    for engine in engines:
        if engine.path(folder).with_suffix(".json").exists():
            costs.append(measure(engine, program, folder, runs))
            report.write(out)
    print_result(report, to_stdout=True)


if __name__ == "__main__":
    start(main)
