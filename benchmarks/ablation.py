"""Can torch.compile match the kernels? One postprocess in several versions (rungs), with equal outputs.

Every rung that can run here, and every other project that is installed (peers), gets the same requests in the same
process. Results are compared with the references first; a rung that differs ends the run without a time. Then all take
turns. GPU work is counted in a second pass, because the profiler slows later launches.

    python -m benchmarks.ablation --out benchmarks/results/ablation
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks import chart
from benchmarks.agreement import enter, expect
from benchmarks.command import DeviceOption, OnlyOption, SizesOption, check_names, start
from benchmarks.contest import Contest
from benchmarks.peers import POSTPROCESSES
from benchmarks.rungs import RUNGS, Instances, Output, Postprocess, Request, Rung, encode_on_host, plant_request
from maskjet.checks import check_count
from maskjet.cli.options import parse_size, print_result, progress
from maskjet.config import EngineConfig
from maskjet.errors import InputError, MaskjetError, UnsupportedError
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.host.profiling import profile
from maskjet.host.tables import shown
from maskjet.host.timing import synchronize
from maskjet.traffic import SIZES_HW

SURVIVORS = (0, 5, 25, 100)
_REQUESTS = 4  # requests that a case cycles through
_BUDGET_S = 1.0  # time for one rung; copying and encoding 100 masks of 1080p takes half of it
_OUTPUTS: tuple[Output, ...] = ("masks", "rle")


@dataclass(frozen=True)
class RungCost:
    """Cost of one rung with one output, for one image size and number of detections."""

    rung: str
    """A key of `RUNGS` or `POSTPROCESSES`."""
    output: Output
    """"masks": dense, on the device; or "rle": COCO RLE strings on the host."""
    size_hw: tuple[int, int]
    """(height, width) of the image, in pixels."""
    survivors: int
    """Number of detections."""
    runs: int
    """Number of timed calls."""
    p50_ms: float
    """Median time of a call, until the device is done."""
    p95_ms: float
    """95th percentile of the time of a call."""
    speedup: float | None
    """Median time of eager with the same output, divided by this one's; None if eager was not run."""
    tolerance_used: float
    """Largest difference from the references as a share of the ops' tolerance; 0 is equal."""
    peak_mib: float | None
    """Peak device memory of a call beyond its inputs, in MiB; None on a CPU."""
    launches: float | None = None
    """Kernels per call; None on a CPU."""
    copies: float | None = None
    """Copies and fills of memory per call; None on a CPU."""
    gpu_us: float | None = None
    """GPU time of the kernels per call, in microseconds; None on a CPU."""


@dataclass(frozen=True)
class AblationReport(measuring.MeasuredReport):
    """All measurements of a run."""

    measurements: Sequence[RungCost]
    """All costs, ordered by image size, number of detections and output."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        work = ("launches", "copies", "GPU µs", "peak MiB", "tolerance")
        rows: list[tuple[str, ...]] = [("size", "found", "output", "rung", "p50 ms", "p95 ms", "speed-up", *work)]
        for m in self.measurements:
            what = (f"{m.size_hw[1]} × {m.size_hw[0]}", str(m.survivors), m.output, m.rung)
            times = (f"{m.p50_ms:.3f}", f"{m.p95_ms:.3f}", shown(m.speedup, 2))
            did = (shown(m.launches, 1), shown(m.copies, 1), shown(m.gpu_us, 1), shown(m.peak_mib, 1))
            rows.append((*what, *times, *did, f"{m.tolerance_used:.2g}"))
        return rows

    def save(self, folder: Path) -> None:
        """Write ablation.csv, ablation.json and, where matplotlib is installed, ablation.png into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.write(folder / "ablation.json")
        gpu = asdict(self.machine.gpu) if self.machine.gpu else dict.fromkeys(("name", "driver", "cuda", "triton"))
        where = {
            "gpu": gpu["name"],
            **{name: gpu[name] for name in ("driver", "cuda", "triton")},
            "cpu": self.machine.cpu,
            "torch": self.machine.versions["torch"],
            "commit": self.machine.commit,
            "measured_at": self.machine.measured_at,
        }
        with (folder / "ablation.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*_columns(self.measurements[0]), *where])
            writer.writeheader()
            writer.writerows({**_columns(measurement), **where} for measurement in self.measurements)
        if chart.why_not() is None:
            chart.draw(self.as_dict(), folder / "ablation.png")


def _columns(measurement: RungCost) -> dict[str, Any]:
    fields = asdict(measurement)
    height, width = fields.pop("size_hw")
    return {"height": height, "width": width, **fields}


@dataclass(frozen=True)
class _Candidate:
    """A rung with an output, ready to be called."""

    rung: Rung
    output: Output
    call: Postprocess

    @property
    def name(self) -> str:
        return f"{self.rung.name}/{self.output}"


Case = tuple[tuple[int, int], int]
"""(height, width) of the image, and number of detections."""


def run(
    out: Path | None = None,
    *,
    sizes_hw: Sequence[tuple[int, int]] = tuple(SIZES_HW.values()),
    survivors: Sequence[int] = SURVIVORS,
    runs: int = 50,
    only: Sequence[str] = (),
    device: str = "auto",
    marks_ranges: bool = False,
    on_progress: Callable[[], None] = lambda: None,
) -> AblationReport:
    """Compare all rungs with the references, then time them.

    Args:
        out: A folder to write the CSV, the JSON and the chart to.
        sizes_hw: (height, width) of the images, in pixels.
        survivors: Numbers of detections, each 0 to 100.
        runs: Timed calls per rung, output and case, at least 1; slow rungs get fewer.
        only: Names of rungs and peers; empty for all.
        device: "auto", "cpu", "cuda" or "cuda:N".
        marks_ranges: Whether to put NVTX ranges around the timed calls, for Nsight.
        on_progress: Called after each case of each pass.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The device or NVTX is not available, or no rung runs on the device.
        MaskjetError: A rung does not equal the references; nothing is written.
    """
    _check(sizes_hw, survivors, runs, only)
    resolved = EngineConfig(device=device).resolve_device()
    if marks_ranges and resolved.type != "cuda":
        raise UnsupportedError(f"--nvtx needs a GPU, got {resolved}. Leave it out.")
    machine = describe_machine()
    rungs, notes = _find_rungs(only, resolved)
    cases = list(dict.fromkeys((size_hw, count) for size_hw in sizes_hw for count in survivors))
    measurements: list[RungCost] = []
    with torch.inference_mode():
        for case, candidates in _prepared(cases, rungs, resolved):
            contest, refused = _admit(case, candidates, resolved, marks_ranges)
            notes += refused
            measurements += _measure(case, contest, candidates, runs, resolved)
            on_progress()
        notes += _compiled_note(rungs, cases)
        if resolved.type == "cuda":
            for case, candidates in _prepared(cases, rungs, resolved):
                measurements = [_count_work(m, case, candidates, resolved) for m in measurements]
                on_progress()
    found = AblationReport(machine, measurements, notes)
    if out is not None:
        found.save(out)
    return found


def _is_compiled(rungs: Sequence[Rung]) -> bool:
    return any(rung.name.startswith("compiled") for rung in rungs)


def _compiled_note(rungs: Sequence[Rung], cases: Sequence[Case]) -> list[str]:
    if not _is_compiled(rungs):
        return []
    from torch._dynamo.utils import counters  # no public way to count graphs; a second to import

    return [f"torch.compile made {counters['stats']['unique_graphs']} graphs over {len(cases)} cases."]


def passes(device: str) -> int:
    """Number of passes that `run` makes over its cases, for a progress bar."""
    return 2 if EngineConfig(device=device).resolve_device().type == "cuda" else 1


def _check(sizes_hw: Sequence[tuple[int, int]], survivors: Sequence[int], runs: int, only: Sequence[str]) -> None:
    check_count("runs", runs)
    if not (sizes_hw and survivors):
        raise InputError("sizes_hw and survivors must not be empty.")
    for count in survivors:
        if not 0 <= count <= max(SURVIVORS):
            raise InputError(f"survivors must be 0..{max(SURVIVORS)}, got {count}.")
    check_names(only, (*RUNGS, *POSTPROCESSES))


def _find_rungs(only: Sequence[str], device: torch.device) -> tuple[list[Rung], list[str]]:
    """Find the rungs that can run on a device, and the reasons why the others can't."""
    rungs, notes = [], []
    for name, rung in {**RUNGS, **POSTPROCESSES}.items():
        if only and name not in only:
            continue
        try:
            rung.build(device)
        except UnsupportedError as error:
            notes.append(f"{name} was left out: {error}")
        else:
            rungs.append(rung)
    if not rungs:
        raise UnsupportedError(f"No rung runs on {device}: {'; '.join(notes)}.")
    if (missing := chart.why_not()) is not None:
        notes.append(f"There is no chart: {missing}")
    return rungs, notes


def _prepared(
    cases: Sequence[Case], rungs: Sequence[Rung], device: torch.device
) -> Iterator[tuple[Case, list[_Candidate]]]:
    """Yield each case with its candidates; compiled functions are compiled anew for each size."""
    candidates: list[_Candidate] = []
    size_hw = None
    for case in cases:
        if case[0] != size_hw:
            size_hw = case[0]
            if _is_compiled(rungs):
                torch.compiler.reset()
            candidates = [candidate for rung in rungs for candidate in _contend(rung, device)]
        yield case, candidates


def _contend(rung: Rung, device: torch.device) -> Iterator[_Candidate]:
    call = rung.build(device)
    yield _Candidate(rung, rung.output, call)
    if rung.output == "masks":
        yield _Candidate(rung, "rle", lambda request: encode_on_host(call(request)))


def _admit(
    case: Case, candidates: Sequence[_Candidate], device: torch.device, marks_ranges: bool
) -> tuple[Contest[Request], list[str]]:
    """Compare all candidates on all requests: a peer that differs is not timed, a rung of ours that differs raises."""
    (height, width), survivors = case
    requests = [plant_request(seed, survivors, case[0], device) for seed in range(_REQUESTS)]
    contest = Contest(requests, expect, device)
    refused = contest.enter(
        {c.name: enter(c.rung, _mark(c, case) if marks_ranges else c.call) for c in candidates},
    )
    messages = []
    for candidate in (c for c in candidates if c.name in refused):
        allowed = candidate.rung.tolerance
        message = (
            f"{candidate.name} must equal the references with {survivors} detections at {width} × {height}, got a "
            f"difference of {allowed * contest.used[candidate.name]:.3g} tolerances where {allowed:g} are allowed; "
            "it was not timed."
        )
        if candidate.rung.name not in POSTPROCESSES:
            raise MaskjetError(message)
        messages.append(message)
    return contest, messages


def _measure(
    case: Case, contest: Contest[Request], candidates: Sequence[_Candidate], runs: int, device: torch.device
) -> Iterator[RungCost]:
    """Time the admitted candidates in turns, one output after the other."""
    for output in _OUTPUTS:
        rivals = {c.name: c for c in candidates if c.output == output}
        times = contest.time(runs=runs, budget_s=_BUDGET_S, names=rivals)
        eager = times.get(f"eager/{output}")
        for name, each in times.items():
            rung = rivals[name].rung
            yield RungCost(
                rung=rung.name,
                output=output,
                size_hw=case[0],
                survivors=case[1],
                runs=each.runs,
                p50_ms=round(each.p50_ms, 4),
                p95_ms=round(each.p95_ms, 4),
                speedup=None if eager is None else round(eager.p50_ms / each.p50_ms, 3),
                tolerance_used=contest.used[name] * rung.tolerance,
                peak_mib=_peak_mib(rivals[name], case, device),
            )


def _mark(candidate: _Candidate, case: Case) -> Postprocess:
    (height, width), survivors = case
    title = f"{candidate.name} {width}x{height} {survivors} found"

    def call(request: Request) -> Instances:
        with torch.cuda.nvtx.range(title):
            return candidate.call(request)

    return call


def _peak_mib(candidate: _Candidate, case: Case, device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    request = plant_request(0, case[1], case[0], device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = candidate.call(request)
    synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del result
    return round(peak / 2**20, 2)


def _count_work(measurement: RungCost, case: Case, candidates: Sequence[_Candidate], device: torch.device) -> RungCost:
    """Add the GPU's work to a measurement of this case; others are returned unchanged."""
    if (measurement.size_hw, measurement.survivors) != case:
        return measurement
    (candidate,) = (c for c in candidates if (c.rung.name, c.output) == (measurement.rung, measurement.output))
    work = profile(partial(candidate.call, plant_request(0, case[1], case[0], device)), device)
    if work is None:
        return measurement
    return replace(measurement, launches=work.kernels, copies=work.copies, gpu_us=work.gpu_us)


def main(
    out: Annotated[Path | None, typer.Option(help="A folder for the CSV, the JSON and the chart.")] = None,
    size: SizesOption = None,
    survivors: Annotated[list[int] | None, typer.Option(help="Detections, 0 to 100; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(help="Timed calls per rung and case; slow rungs get fewer.")] = 50,
    only: OnlyOption = None,
    nvtx: Annotated[bool, typer.Option("--nvtx", help="Mark the timed calls with NVTX ranges, for Nsight.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Can torch.compile match the kernels? Compare, then time versions of one postprocess and other projects'."""
    sizes_hw = [parse_size(text) for text in size or SIZES_HW]
    counts = survivors or SURVIVORS
    with progress("measuring", len(set(sizes_hw)) * len(set(counts)) * passes(device)) as advance:
        found = run(
            out,
            sizes_hw=sizes_hw,
            survivors=counts,
            runs=runs,
            only=only or (),
            device=device,
            marks_ranges=nvtx,
            on_progress=advance,
        )
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
