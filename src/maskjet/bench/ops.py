"""What each implementation of each op costs on a CPU, at the sizes a camera gives.

Every implementation, and the peer where there is one, gets the same inputs in the same process. They are compared
first; without agreement there are no times. Then they take turns, on inputs that change from turn to turn.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from maskjet import ops
from maskjet.bench.machine import Machine, describe_machine
from maskjet.bench.table import as_table
from maskjet.errors import InputError, MaskjetError
from maskjet.ops.paste_masks.cases import blobs
from maskjet.ops.record import Op
from maskjet.traffic import SIZES_HW

Inputs = dict[str, Any]
Call = Callable[..., Any]

_INPUTS = 4  # that a workload rotates through


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
    """Time to move the bytes that any implementation must move, at the machine's bandwidth."""
    speedup: float
    """Median time of the slowest variant on this workload over this one's."""
    tolerance_used: float
    """Largest share of the op's tolerance that a difference to the reference takes; 0 is equal."""


@dataclass(frozen=True)
class Report:
    """All measurements of a run."""

    machine: Machine
    """Where they hold."""
    measurements: Sequence[Measurement]
    """In the order of `ops.RECORDS` and `WORKLOADS`."""
    notes: Sequence[str]
    """What was left out, and why."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        header = ("op", "workload", "variant", "p50 ms", "p95 ms", "floor ms", "speed-up", "tolerance used")
        rows = [header]
        for m in self.measurements:
            times = (f"{m.p50_ms:.3f}", f"{m.p95_ms:.3f}", f"{m.floor_ms:.4f}", f"{m.speedup:.1f}")
            rows.append((m.op, m.workload, m.variant, *times, f"{m.tolerance_used:.2g}"))
        return "\n".join([as_table(rows), str(self.machine), *self.notes])


def run(path: Path | None = None, *, runs: int = 30, only: Sequence[str] = ()) -> Report:
    """Compare, then time all implementations of the ops.

    Args:
        path: A JSON file to write the report to.
        runs: Calls to time per implementation and workload, at least 1.
        only: Names of ops; none for all.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: runs or only is not as above.
        MaskjetError: An implementation does not equal the reference; nothing is written.
    """
    if runs < 1:
        raise InputError(f"runs must be at least 1, got {runs}.")
    unknown = [name for name in only if name not in ops.RECORDS]
    if unknown:
        raise InputError(f"only must name ops, {', '.join(ops.RECORDS)}, got {', '.join(unknown)}.")
    machine = describe_machine()
    peers, notes = _peers()
    measurements: list[Measurement] = []
    for name, op in ops.RECORDS.items():
        if not only or name in only:
            for workload, build in WORKLOADS[name].items():
                inputs = [build(torch.Generator().manual_seed(seed)) for seed in range(_INPUTS)]
                calls = {**_variants(op, inputs[0]), **peers.get(name, {})}
                measurements += _measure(op, workload, inputs, calls, runs=runs, machine=machine)
    report = Report(machine, measurements, notes)
    if path is not None:
        path.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    return report


def _variants(op: Op, inputs: Inputs) -> dict[str, Call]:
    """The implementations that serve these inputs, by name."""
    sample = next(iter(inputs.values()))
    serving = [name for name, variant in op.variants.items() if variant.refuse(sample) is None]
    return {name: partial(op.public, implementation=name) for name in serving}


def _measure(
    op: Op, workload: str, inputs: Sequence[Inputs], calls: Mapping[str, Call], *, runs: int, machine: Machine
) -> Iterator[Measurement]:
    """Compare all variants on all inputs, then time them in turns."""
    used = dict.fromkeys(calls, 0.0)
    for given in inputs:
        expected = calls["reference"](**given)
        for variant, call in calls.items():
            used[variant] = max(used[variant], op.tolerance_used(given, expected, call(**given)))
            if not used[variant] <= 1:
                raise MaskjetError(
                    f"{variant} must equal the reference of ops.{op.name} on {workload!r}, "
                    f"got a difference of {used[variant]:.3g} tolerances; nothing was timed."
                )
    times_ms: dict[str, list[float]] = {variant: [] for variant in calls}
    for turn in range(runs):
        for variant, call in calls.items():
            start = time.perf_counter()
            call(**inputs[turn % len(inputs)])
            times_ms[variant].append(1000 * (time.perf_counter() - start))
    median = {variant: statistics.median(times) for variant, times in times_ms.items()}
    for variant, times in times_ms.items():
        yield Measurement(
            op=op.name,
            workload=workload,
            variant=variant,
            runs=runs,
            p50_ms=round(median[variant], 4),
            p95_ms=round(sorted(times)[min(int(0.95 * runs), runs - 1)], 4),
            floor_ms=round(op.bytes_moved(inputs[0]) / machine.copy_gb_per_s / 1e6, 5),
            speedup=round(max(median.values()) / median[variant], 2),
            tolerance_used=used[variant],
        )


def _peers() -> tuple[dict[str, dict[str, Call]], list[str]]:
    """What others do in an op's place, by op and name, and a note on those that are not installed."""
    try:
        from pycocotools import mask as pycoco_mask
    except ImportError:
        return {}, ["pycocotools is not installed, so it was not compared with: pip install pycocotools."]

    def paste_and_encode(**inputs: Any) -> list[list[bytes]]:
        pasted = ops.paste_masks(**inputs, implementation="reference")
        planes = ([np.asfortranarray(mask) for mask in masks.numpy()] for masks, _ in pasted)
        return [[pycoco_mask.encode(plane)["counts"] for plane in image] for image in planes]

    return {"encode_masks": {"paste + pycocotools": paste_and_encode}}, []


def _frame(generator: torch.Generator) -> Inputs:
    frame = torch.randint(0, 256, (*SIZES_HW["1080p"], 3), dtype=torch.uint8, generator=generator)
    return {"frames": frame, "size": (312, 312), "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def _predictions(generator: torch.Generator) -> Inputs:
    logits = 1.5 * torch.randn(1, 100, 91, generator=generator) - 6
    logits[0, :25, 3] = 1 + torch.rand(25, generator=generator)
    return {"logits": logits, "boxes": torch.rand(1, 100, 4, generator=generator), "image_sizes": [SIZES_HW["1080p"]]}


def _masks(size: str, *, is_noise: bool = False) -> Callable[[torch.Generator], Inputs]:
    def build(generator: torch.Generator) -> Inputs:
        logits = torch.randn(1, 100, 78, 78, generator=generator) if is_noise else blobs(1, 100, (78, 78), generator)
        query = [torch.randperm(100, generator=generator)[:25]]
        return {"mask_logits": logits, "query": query, "image_sizes": [SIZES_HW[size]]}

    return build


WORKLOADS: Mapping[str, Mapping[str, Callable[[torch.Generator], Inputs]]] = {
    "preprocess": {"1080p to 312 × 312": _frame},
    "select": {"100 queries, 91 classes, 25 found": _predictions},
    "encode_masks": {
        **{f"{size}, 25 masks": _masks(size) for size in SIZES_HW},
        "1080p, 25 masks of noise": _masks("1080p", is_noise=True),
    },
    "paste_masks": {"1080p, 25 masks": _masks("1080p")},
}
"""By op and name, what builds the keyword arguments of its public function."""
