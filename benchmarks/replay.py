"""Replay captured calls with every implementation: check each result against the saved one, and time each call.

python -m benchmarks.replay captured --out benchmarks/results/replay_h200.json
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.capture import Call, read_calls, read_manifest
from benchmarks.command import DeviceOption, ReportOption, start
from benchmarks.contest import Contest, Entry
from benchmarks.workloads import Inputs, as_listed, to_device
from maskjet import ops
from maskjet.checks import check_count
from maskjet.cli.options import print_result, progress
from maskjet.config import EngineConfig
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.host.tables import shown
from maskjet.host.timing import percentile
from maskjet.ops.record import Op
from tests.ops.cases import CHECKS

_EXIT_DIFFERENT = 1


@dataclass(frozen=True)
class ReplayCost:
    """Times and differences of one implementation of one op, over the calls of one capture."""

    capture: str
    """Name of the capture's folder."""
    op: str
    """The op's name."""
    implementation: str
    """Name of the implementation."""
    calls: int
    """Number of replayed calls."""
    mean_ms: float | None
    """Mean time of a call, without those whose result is too different; None if all are."""
    p50_ms: float | None
    """Median time of a call."""
    p90_ms: float | None
    """90th percentile of the time of a call."""
    p99_ms: float | None
    """99th percentile of the time of a call."""
    equal: int
    """Number of calls whose result equals the saved one bit for bit."""
    within_tolerance: int
    """Number of calls whose result differs from the saved one, within the op's tolerance."""
    different: int
    """Number of calls whose result differs from the saved one by more than the op's tolerance."""
    tolerance_used: float
    """Largest difference as a share of the op's tolerance."""


@dataclass(frozen=True)
class ReplayReport(measuring.MeasuredReport):
    """All measurements of a run."""

    measurements: Sequence[ReplayCost]
    """All costs, ordered by capture, op and implementation."""

    @property
    def is_equal(self) -> bool:
        """Whether every result was within its tolerance of the saved one."""
        return not any(m.different for m in self.measurements)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        times = ("mean ms", "p50 ms", "p90 ms", "p99 ms")
        checks = ("equal", "within tolerance", "different", "tolerance")
        rows: list[tuple[str, ...]] = [("capture", "op", "implementation", "calls", *times, *checks)]
        for m in self.measurements:
            numbers = (shown(ms, 3) for ms in (m.mean_ms, m.p50_ms, m.p90_ms, m.p99_ms))
            counts = (str(m.equal), str(m.within_tolerance), str(m.different), f"{m.tolerance_used:.2g}")
            rows.append((m.capture, m.op, m.implementation, str(m.calls), *numbers, *counts))
        return rows


@dataclass
class _Tally:
    """Times and differences of one implementation so far."""

    times_ms: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def finish(self, capture: str, op: str, implementation: str) -> ReplayCost:
        equal = sum(share == 0 for share in self.shares)
        within = sum(0 < share <= 1 for share in self.shares)
        return ReplayCost(
            capture=capture,
            op=op,
            implementation=implementation,
            calls=len(self.shares),
            mean_ms=round(statistics.fmean(self.times_ms), 4) if self.times_ms else None,
            p50_ms=round(statistics.median(self.times_ms), 4) if self.times_ms else None,
            p90_ms=self._percentile(0.9),
            p99_ms=self._percentile(0.99),
            equal=equal,
            within_tolerance=within,
            different=len(self.shares) - equal - within,
            tolerance_used=max(self.shares),
        )

    def _percentile(self, share: float) -> float | None:
        return round(percentile(self.times_ms, share), 4) if self.times_ms else None


def run(
    captures: Sequence[Path],
    path: Path | None = None,
    *,
    implementation: str | None = None,
    runs: int = 5,
    device: str = "auto",
    on_progress: Callable[[], None] = lambda: None,
) -> ReplayReport:
    """Replay the calls of captures: check each result, then time each call.

    Args:
        captures: Folders that `capture.write` wrote.
        path: A JSON file to write the report to.
        implementation: "auto" for each op's fastest, or a name; None for all that can run the calls.
        runs: Timed repeats of each call, at least 1.
        device: "auto", "cpu", "cuda" or "cuda:N".
        on_progress: Called after each frame.

    Returns:
        The report, which prints as a table; its `is_equal` is the verdict.

    Raises:
        InputError: An argument or a capture is not as above.
        UnsupportedError: The implementation asked for can't run the calls.
    """
    check_count("runs", runs)
    resolved = EngineConfig(device=device).resolve_device()
    manifests = {folder: read_manifest(folder) for folder in captures}
    machine = describe_machine()
    measurements: list[ReplayCost] = []
    for folder, manifest in manifests.items():
        tallies: dict[tuple[str, str], _Tally] = {}
        for index in range(manifest["frames"]):
            for call in read_calls(folder, manifest, index):
                _replay(call, implementation, runs, resolved, tallies)
            on_progress()
        measurements += [tally.finish(folder.name, *names) for names, tally in tallies.items()]
    found = ReplayReport(machine, measurements)
    found.write(path)
    return found


@torch.inference_mode()
def _replay(
    call: Call, implementation: str | None, runs: int, device: torch.device, tallies: dict[tuple[str, str], _Tally]
) -> None:
    op, inputs, expected = ops.RECORDS[call.op], to_device(call.inputs, device), to_device(call.expected, device)
    contest = Contest([inputs], lambda _: expected, device)
    contest.enter(
        {
            name: Entry(partial(_call, op, name), partial(_share, op))
            for name in _implementations(op, implementation, next(iter(inputs.values())))
        }
    )
    times = contest.time(runs=runs)
    for name, share in contest.used.items():
        tally = tallies.setdefault((op.name, name), _Tally())
        tally.shares.append(share)
        tally.times_ms += times[name].each_ms if name in times else ()


def _call(op: Op, implementation: str, inputs: Inputs) -> Any:
    return op.public(**inputs, implementation=implementation)


def _implementations(op: Op, implementation: str | None, sample: torch.Tensor) -> list[str]:
    if implementation is not None:
        return [op.choose(implementation, sample).name]
    return [name for name, variant in op.variants.items() if variant.refuse(sample) is None]


def _share(op: Op, inputs: Inputs, expected: Any, actual: Any) -> float:
    try:
        return CHECKS[op.name].tolerance_used(as_listed(inputs), expected, actual)
    except (RuntimeError, ValueError, IndexError):  # other shapes, or no RLE at all
        return inf


def main(
    captures: Annotated[list[Path], typer.Argument(help="Folders that benchmarks.capture wrote.")],
    out: ReportOption = None,
    implementation: Annotated[
        str | None, typer.Option(help="auto, reference, triton or cpu; if not given, all that run here.")
    ] = None,
    runs: Annotated[int, typer.Option(help="Timed repeats of each call.")] = 5,
    device: DeviceOption = "auto",
) -> None:
    """Replay captured calls: check each result against the saved one, and time them. Exits with 1 if one differs."""
    frames = sum(read_manifest(folder)["frames"] for folder in captures)
    with progress("replaying", frames) as advance:
        found = run(captures, out, implementation=implementation, runs=runs, device=device, on_progress=advance)
    print_result(found, to_stdout=True)
    if not found.is_equal:
        raise typer.Exit(_EXIT_DIFFERENT)


if __name__ == "__main__":
    start(main)
