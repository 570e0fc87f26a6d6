"""Time each implementation of each op, at usual camera sizes.

Every implementation, and another project's where there is one, gets the same inputs in the same process. Results are
compared first; nothing is timed if one differs. Then all take turns, on inputs that change from call to call. GPU work
is counted last, because the profiler slows later launches.

    python -m benchmarks.ops --out benchmarks/results/ops_cpu.json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.command import DeviceOption, OnlyOption, ReportOption, check_names, start
from benchmarks.contest import Contest, Entry, take_turns
from benchmarks.workloads import GPU_WORKLOADS, WORKLOADS, Inputs, Workload, as_listed, to_device
from maskjet import ops
from maskjet.checks import check_count
from maskjet.cli.options import print_result
from maskjet.config import EngineConfig
from maskjet.errors import MaskjetError
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.host.tables import shown
from maskjet.ops.record import Op
from tests.ops.cases import CHECKS
from tests.ops.network import OPS

Call = Callable[..., Any]

_INPUTS = 4  # inputs that a workload cycles through
_BUDGET_S = 5.0  # time for one variant


@dataclass(frozen=True)
class VariantCost:
    """Cost of one implementation of one op on one workload."""

    op: str
    """The op's name."""
    workload: str
    """Name of the workload, as in `WORKLOADS` and `GPU_WORKLOADS`."""
    variant: str
    """Name of the implementation, or of another project's function."""
    runs: int
    """Number of timed calls."""
    p50_ms: float
    """Median time of a call."""
    p95_ms: float
    """95th percentile of the time of a call."""
    floor_ms: float
    """Time to move the bytes that any implementation must move, at the bandwidth of the device."""
    speedup: float
    """Median time of the slowest variant on this workload, divided by this one's."""
    tolerance_used: float
    """Largest difference from the reference as a share of the op's tolerance; 0 is equal."""
    gpu_us: float | None = None
    """GPU time of the kernels per call, in microseconds; None on a CPU."""
    launches: float | None = None
    """Kernels per call; None on a CPU."""


@dataclass(frozen=True, kw_only=True)
class OpsReport(measuring.MeasuredReport):
    """All measurements of a run."""

    measurements: Sequence[VariantCost]
    """All costs, in the order of `OPS` and `WORKLOADS`."""
    copy_gb_per_s: float
    """Bandwidth of copies within the device's memory, reads and writes, in 1e9 bytes per second."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        rows: list[tuple[str, ...]] = [
            ("op", "workload", "variant", "p50 ms", "p95 ms", "floor ms", "speed-up", "GPU µs", "launches", "tolerance")
        ]
        for m in self.measurements:
            times = (f"{m.p50_ms:.3f}", f"{m.p95_ms:.3f}", f"{m.floor_ms:.4f}", f"{m.speedup:.1f}")
            work = (shown(m.gpu_us, 1), shown(m.launches, 1))
            rows.append((m.op, m.workload, m.variant, *times, *work, f"{m.tolerance_used:.2g}"))
        return rows


@dataclass(frozen=True)
class _Trial:
    """An op on a workload, with the variants that are equal to the reference."""

    op: Op
    workload: str
    inputs: Sequence[Inputs]
    contest: Contest[Inputs]


_COPIED_BYTES = {"cpu": 2**27, "cuda": 2**29}
"""Bytes to copy, by type of device: four times the largest known cache, and on a GPU enough to hide the launch."""


def measure_bandwidth(device: torch.device) -> float:
    """Measure the bytes per second that a device reads and writes in the fastest of ten copies within its memory."""
    size = _COPIED_BYTES[device.type]
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    times_ms = take_turns({"copy": lambda _: target.copy_(source)}, runs=10, device=device)["copy"]
    return 2000 * size / min(times_ms)


def run(path: Path | None = None, *, runs: int = 30, only: Sequence[str] = (), device: str = "auto") -> OpsReport:
    """Compare, then time all implementations of the ops.

    Args:
        path: A JSON file to write the report to.
        runs: Timed calls per implementation and workload, at least 1; slow implementations get fewer.
        only: Names of ops; empty for all.
        device: Device of the inputs: "auto", "cpu", "cuda" or "cuda:N".

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The device is not available.
        MaskjetError: An implementation does not equal the reference; nothing is written.
    """
    check_count("runs", runs)
    check_names(only, OPS)
    resolved = EngineConfig(device=device).resolve_device()
    bandwidth = measure_bandwidth(resolved)
    peers, notes = _peers()
    trials = [
        _prepare(op, workload, build, peers.get(name, {}), resolved)
        for name, op in OPS.items()
        if not only or name in only
        for workload, build in _workloads(name, resolved).items()
    ]
    timed = [found for trial in trials for found in _measure(trial, runs, bandwidth)]
    contests = {(trial.op.name, trial.workload): trial.contest for trial in trials}
    measurements = [_count(contests[found.op, found.workload], found) for found in timed]
    found = OpsReport(
        machine=describe_machine(),
        measurements=measurements,
        notes=notes,
        copy_gb_per_s=round(bandwidth / 1e9, 1),
    )
    found.write(path)
    return found


def _workloads(name: str, device: torch.device) -> Mapping[str, Workload]:
    return {**WORKLOADS[name], **(GPU_WORKLOADS[name] if device.type == "cuda" else {})}


def _prepare(op: Op, workload: str, build: Workload, peers: Mapping[str, Call], device: torch.device) -> _Trial:
    """Build the inputs, and compare all implementations that can run on them with the reference."""
    inputs = [to_device(build(torch.Generator().manual_seed(seed)), device) for seed in range(_INPUTS)]
    sample = next(iter(inputs[0].values()))
    serving = [name for name, variant in op.variants.items() if variant.refuse(sample) is None]
    calls: dict[str, Call] = {**{name: partial(op.public, implementation=name) for name in serving}, **peers}
    contest = Contest(inputs, partial(_call, calls["reference"]), device)

    def share(given: Inputs, expected: Any, actual: Any) -> float:
        return CHECKS[op.name].tolerance_used(as_listed(given), expected, actual)

    refused = contest.enter({name: Entry(partial(_call, call), share) for name, call in calls.items()})
    for name in refused:
        raise MaskjetError(
            f"{name} must equal the reference of ops.{op.name} on {workload!r}, got a difference of "
            f"{contest.used[name]:.3g} tolerances; nothing was timed."
        )
    return _Trial(op, workload, inputs, contest)


def _call(call: Call, inputs: Inputs) -> Any:
    return call(**inputs)


def _measure(trial: _Trial, runs: int, bandwidth: float) -> list[VariantCost]:
    """Time all variants in turns."""
    times = trial.contest.time(runs=runs, budget_s=_BUDGET_S)
    slowest_ms = max(each.p50_ms for each in times.values())
    floor_ms = 1000 * CHECKS[trial.op.name].bytes_moved(as_listed(trial.inputs[0])) / bandwidth
    return [
        VariantCost(
            op=trial.op.name,
            workload=trial.workload,
            variant=variant,
            runs=each.runs,
            p50_ms=round(each.p50_ms, 4),
            p95_ms=round(each.p95_ms, 4),
            floor_ms=round(floor_ms, 5),
            speedup=round(slowest_ms / each.p50_ms, 2),
            tolerance_used=trial.contest.used[variant],
        )
        for variant, each in times.items()
    ]


def _count(contest: Contest[Inputs], measurement: VariantCost) -> VariantCost:
    work = contest.count(measurement.variant)
    return measurement if work is None else replace(measurement, gpu_us=work.gpu_us, launches=work.launches)


def _peers() -> tuple[dict[str, dict[str, Call]], list[str]]:
    """Find other projects' implementations, by op and name; also note those that are not installed."""
    try:
        from pycocotools import mask as pycoco_mask
    except ImportError:
        return {}, ["pycocotools is left out, since it is not installed: pip install 'maskjet[bench]'."]

    def paste_and_encode(**inputs: Any) -> list[list[bytes]]:
        pasted = ops.paste_masks(**inputs)
        planes = ([np.asfortranarray(mask) for mask in masks.cpu().numpy()] for masks, _ in pasted)
        return [[pycoco_mask.encode(plane)["counts"] for plane in image] for image in planes]

    return {"encode_masks": {"paste + pycocotools": paste_and_encode}}, []


def main(
    out: ReportOption = None,
    only: OnlyOption = None,
    runs: Annotated[int, typer.Option(help="Timed calls per implementation and workload.")] = 30,
    device: DeviceOption = "auto",
) -> None:
    """Compare, then time every implementation of every op, beside pycocotools where it is installed."""
    print_result(run(out, runs=runs, only=only or (), device=device), to_stdout=True)


if __name__ == "__main__":
    start(main)
