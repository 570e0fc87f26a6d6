"""What each implementation of each op costs, at the sizes a camera gives.

Every implementation, and the peer where there is one, gets the same inputs in the same process. They are compared
first; without agreement there are no times. Then they take turns, on inputs that change from turn to turn. What they
make a GPU do is counted last, because the profiler slows down what follows it.

    python -m benchmarks.ops --out benchmarks/results/ops_cpu.json
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.command import DeviceOption, OnlyOption, ReportOption, start
from benchmarks.timing import measure_bandwidth, take_turns
from benchmarks.workloads import GPU_WORKLOADS, WORKLOADS, Inputs, Workload, as_listed, to_device
from maskjet import ops
from maskjet.cli.options import print_result
from maskjet.config import EngineConfig
from maskjet.errors import MaskjetError
from maskjet.ops.record import Op
from maskjet.parity import report
from maskjet.parity.machine import describe_machine
from maskjet.parity.table import shown
from maskjet.profiling import profile_gpu
from maskjet.timing import percentile

Call = Callable[..., Any]

_INPUTS = 4  # that a workload rotates through
_BUDGET_S = 5.0  # for the turns of one variant


@dataclass(frozen=True)
class Measurement:
    """One implementation of one op on one workload."""

    op: str
    """The op's name."""
    workload: str
    """What it was given; see `WORKLOADS`."""
    variant: str
    """The implementation, or the peer's name."""
    runs: int
    """Timed calls."""
    p50_ms: float
    """Median time of a call."""
    p95_ms: float
    """Time that 95 % of the calls kept."""
    floor_ms: float
    """Time to move the bytes that any implementation must move, at the bandwidth of the device they lie on."""
    speedup: float
    """Median time of the slowest variant on this workload over this one's."""
    tolerance_used: float
    """Largest share of the op's tolerance that a difference to the reference takes; 0 is equal."""
    gpu_us: float | None = None
    """Microseconds of kernels per call; None on a CPU."""
    launches: float | None = None
    """Kernels per call; None on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Report(report.Report):
    """All measurements of a run."""

    measurements: Sequence[Measurement]
    """In the order of `ops.RECORDS` and `WORKLOADS`."""
    copy_gb_per_s: float
    """Bytes that the device reads and writes per second, in 1e9, when it copies its own memory."""

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
class _Contest:
    """An op on a workload, and who takes part."""

    op: Op
    workload: str
    inputs: Sequence[Inputs]
    calls: Mapping[str, Call]


def run(path: Path | None = None, *, runs: int = 30, only: Sequence[str] = (), device: str = "auto") -> Report:
    """Compare, then time all implementations of the ops.

    Args:
        path: A JSON file to write the report to.
        runs: Calls to time per implementation and workload, at least 1; fewer where they take long.
        only: Names of ops; none for all.
        device: "auto", "cpu", "cuda" or "cuda:N": where the inputs lie.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The device is not here.
        MaskjetError: An implementation does not equal the reference; nothing is written.
    """
    report.check_runs(runs)
    report.check_names(only, ops.RECORDS)
    resolved = EngineConfig(device=device).resolve_device()
    bandwidth = measure_bandwidth(resolved)
    peers, notes = _peers()
    contests = [
        _prepare(op, workload, build, peers.get(name, {}), resolved)
        for name, op in ops.RECORDS.items()
        if not only or name in only
        for workload, build in _workloads(name, resolved).items()
    ]
    timed = [_measure(contest, runs, bandwidth, resolved) for contest in contests]
    measurements = [
        _count_launches(contest, measurement, resolved)
        for contest, found in zip(contests, timed, strict=True)
        for measurement in found
    ]
    found = Report(
        machine=describe_machine(),
        measurements=measurements,
        notes=notes,
        copy_gb_per_s=round(bandwidth / 1e9, 1),
    )
    found.write(path)
    return found


def _workloads(name: str, device: torch.device) -> Mapping[str, Workload]:
    return {**WORKLOADS[name], **(GPU_WORKLOADS[name] if device.type == "cuda" else {})}


def _prepare(op: Op, workload: str, build: Workload, peers: Mapping[str, Call], device: torch.device) -> _Contest:
    """Build the inputs and find the implementations that serve them."""
    inputs = [to_device(build(torch.Generator().manual_seed(seed)), device) for seed in range(_INPUTS)]
    sample = next(iter(inputs[0].values()))
    serving = [name for name, variant in op.variants.items() if variant.refuse(sample) is None]
    return _Contest(
        op, workload, inputs, {**{name: partial(op.public, implementation=name) for name in serving}, **peers}
    )


def _measure(contest: _Contest, runs: int, bandwidth: float, device: torch.device) -> list[Measurement]:
    """Compare all variants on all inputs, then time them in turns."""
    used = _compare(contest)
    turns = {name: partial(_call_in_turn, call, contest.inputs) for name, call in contest.calls.items()}
    times_ms = take_turns(turns, runs=runs, device=device, budget_s=_BUDGET_S)
    median = {variant: statistics.median(times) for variant, times in times_ms.items()}
    floor_ms = 1000 * contest.op.bytes_moved(as_listed(contest.inputs[0])) / bandwidth
    return [
        Measurement(
            op=contest.op.name,
            workload=contest.workload,
            variant=variant,
            runs=len(times),
            p50_ms=round(median[variant], 4),
            p95_ms=round(percentile(times, 0.95), 4),
            floor_ms=round(floor_ms, 5),
            speedup=round(max(median.values()) / median[variant], 2),
            tolerance_used=used[variant],
        )
        for variant, times in times_ms.items()
    ]


def _compare(contest: _Contest) -> dict[str, float]:
    """The largest share of the tolerance that each variant uses."""
    used = dict.fromkeys(contest.calls, 0.0)
    for given in contest.inputs:
        expected, listed = contest.calls["reference"](**given), as_listed(given)
        for variant, call in contest.calls.items():
            used[variant] = max(used[variant], contest.op.tolerance_used(listed, expected, call(**given)))
            if not used[variant] <= 1:
                raise MaskjetError(
                    f"{variant} must equal the reference of ops.{contest.op.name} on {contest.workload!r}, "
                    f"got a difference of {used[variant]:.3g} tolerances; nothing was timed."
                )
    return used


def _call_in_turn(call: Call, inputs: Sequence[Inputs], turn: int) -> Any:
    return call(**inputs[turn % len(inputs)])


def _count_launches(contest: _Contest, measurement: Measurement, device: torch.device) -> Measurement:
    work = profile_gpu(partial(contest.calls[measurement.variant], **contest.inputs[0]), device)
    return measurement if work is None else replace(measurement, gpu_us=work.gpu_us, launches=work.launches)


def _peers() -> tuple[dict[str, dict[str, Call]], list[str]]:
    """What others do in an op's place, by op and name, and a note on those that are not installed."""
    try:
        from pycocotools import mask as pycoco_mask
    except ImportError:
        return {}, ["pycocotools is not installed, so it was not compared with: pip install 'maskjet[bench]'."]

    def paste_and_encode(**inputs: Any) -> list[list[bytes]]:
        pasted = ops.paste_masks(**inputs, implementation="reference")
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
