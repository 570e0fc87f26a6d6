"""How long OpenMP's threads should spin: the demo model's time per frame, alone and beside busy neighbours.

    python -m benchmarks.neighbours --out benchmarks/results/neighbours_cpu.json

Each measurement is a process of its own, since OpenMP reads its settings once. Settings take turns; medians are over
all frames of all turns. A neighbour is a process that only keeps a core busy.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from benchmarks.command import ReportOption, start
from maskjet.host.files import write_json
from maskjet.host.machine import describe_machine
from maskjet.host.process import SPINNING

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "as OpenMP has it": {"GOMP_SPINCOUNT": "300000"},  # its default, which importing maskjet changes
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "GOMP_SPINCOUNT=100000": {"GOMP_SPINCOUNT": "100000"},
}
_CHILD = """
import json, sys, time
import maskjet
frames = [maskjet.traffic.sample(seed=seed, size_hw=(720, 1280)).image for seed in range(4)]
with maskjet.load("demo", device="cpu") as model:
    model.predict(frames[0])
    times, end = [], time.perf_counter() + float(sys.argv[1])
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        model.predict(frames[len(times) % len(frames)])
        times.append(time.perf_counter() - start)
print(json.dumps(times))
"""


def measure(setting: Mapping[str, str], seconds: float) -> list[float]:
    """Time each frame, in seconds, in a process with the given environment variables."""
    environment = {name: value for name, value in os.environ.items() if name not in SPINNING} | dict(setting)
    command = [sys.executable, "-c", _CHILD, str(seconds)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return list(json.loads(done.stdout))


@contextmanager
def busy(neighbours: int) -> Iterator[None]:
    """Keep as many cores busy as there are neighbours."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(neighbours)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(
    out: ReportOption = None,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.")] = 5.0,
    turns: Annotated[int, typer.Option(help="Measurements per setting and number of neighbours.")] = 3,
) -> None:
    """Time frames by how long OpenMP's threads spin, alone and beside busy neighbours."""
    cores = len(os.sched_getaffinity(0))
    rows = []
    for neighbours in (0, 1, cores):
        times: dict[str, list[float]] = {name: [] for name in SETTINGS}
        for _ in range(turns):
            for name, setting in SETTINGS.items():
                with busy(neighbours):
                    times[name] += measure(setting, seconds)
        for name, found in times.items():
            row: dict[str, Any] = {"setting": name, "neighbours": neighbours, "frames": len(found)}
            row |= {"p50_ms": 1e3 * statistics.median(found), "worst_ms": 1e3 * max(found)}
            rows.append(row)
            print("{setting:24} {neighbours} neighbours {p50_ms:8.1f} ms, at most {worst_ms:8.1f}".format(**row))
    if out is not None:
        write_json(out, {"machine": asdict(describe_machine()), "measurements": rows})


if __name__ == "__main__":
    start(main)
