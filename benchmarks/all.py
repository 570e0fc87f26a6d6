"""Measure what README, docs/performance.md and the pages of benchmarks/ show, in pieces of at most eight minutes.

    python -m benchmarks.all --list
    python -m benchmarks.all --piece 1 --piece 2 --out measured

The steps are lines of all_cuda.txt and all_cpu.txt: expected minutes, name and commands, the most important first.
Reports, and what was printed, go to OUT/GPU/DATE; what has a result there is not run again. Each piece begins with the
same measurement, which is added to anchors.json and shows how machines of a kind differ.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.command import DeviceOption, check_names, start
from benchmarks.contest import median_ms
from maskjet import load, traffic
from maskjet.config import EngineConfig
from maskjet.errors import MaskjetError
from maskjet.host import process
from maskjet.host.files import write_json
from maskjet.host.machine import describe_machine
from maskjet.host.tables import as_table

_MOST_MINUTES = 8  # of a piece; on a CPU a longer step is a piece of its own


@dataclass(frozen=True)
class Step:
    """A measurement."""

    name: str
    """Name of its result."""
    minutes: int
    """Minutes that it is expected to take."""
    text: str
    """Commands joined by &&; {out} is the result's path without a suffix, {work} a temporary folder."""

    def commands(self, folder: Path, work: str) -> list[list[str]]:
        """The command lines for a folder of results."""
        texts = self.text.format(out=shlex.quote(str(folder / self.name)), work=shlex.quote(work)).split(" && ")
        return [[sys.executable if word == "python" else word for word in shlex.split(each)] for each in texts]


def read_pieces(kind: str) -> list[list[Step]]:
    """The steps on a kind of device, "cuda" or "cpu", cut into pieces in their order."""
    pieces: list[list[Step]] = []
    for line in Path(__file__).with_name(f"all_{kind}.txt").read_text().splitlines():
        head, text = line.split(": ", 1)
        minutes, name = head.split()
        if not pieces or sum(each.minutes for each in pieces[-1]) + int(minutes) > _MOST_MINUTES:
            pieces.append([])
        pieces[-1].append(Step(name, int(minutes), text))
    return pieces


def time_anchor(device: str) -> dict[str, Any]:
    """The median time of the demo model on a frame of 720p in memory, in ms, and the machine."""
    image = traffic.sample(seed=3, size_hw=(720, 1280)).image
    with load("demo", device=device) as model, process.garbage_frozen():
        p50_ms = median_ms(lambda _: model.predict(image), 50, 2.0)
    return {"p50_ms": round(p50_ms, 3), "machine": asdict(describe_machine())}


def run_piece(number: int, steps: Sequence[Step], anchor: Mapping[str, Any], out: Path, date: str = "") -> list[str]:
    """Run the steps that have no result, and print how each ended; returns the names of those that failed."""
    machine = anchor["machine"]
    name = machine["gpu"]["name"].removeprefix("NVIDIA ") if machine["gpu"] else "cpu"
    folder = out / re.sub(r"[^a-z0-9]+", "-", name.lower()) / (date or machine["measured_at"][:10])
    folder.mkdir(parents=True, exist_ok=True)
    anchors = folder / "anchors.json"
    before = json.loads(anchors.read_text()) if anchors.exists() else []
    write_json(anchors, [*before, {"piece": number, **anchor}])
    print(f"piece {number} in {folder}: a frame of the demo model takes {anchor['p50_ms']} ms", flush=True)
    failed = []
    for step in steps:
        if (folder / f"{step.name}.txt").exists():
            print(f"  {step.name}: has a result")
            continue
        begin = time.monotonic()
        reason = _run(step, folder)
        took = f"{(time.monotonic() - begin) / 60:.1f} minutes, expected {step.minutes}"
        print(f"  {step.name}: {took}{f', failed: {reason}' if reason else ''}", flush=True)
        failed += [step.name] if reason else []
    return failed


def _run(step: Step, folder: Path) -> str | None:
    """Run a step's commands; returns why one failed. The file with what they printed says that the result is whole."""
    printed = folder / f"{step.name}.partial.txt"
    with TemporaryDirectory() as work, printed.open("w") as file:
        for command in step.commands(folder, work):
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
            if code:
                lines = printed.read_text(errors="replace").splitlines()
                return f"exit code {code}, {lines[-1] if lines else 'nothing printed'}"
    printed.rename(folder / f"{step.name}.txt")
    return None


def main(
    piece: Annotated[list[int] | None, typer.Option(help="Number of a piece; repeatable, all if not given.")] = None,
    out: Annotated[Path, typer.Option(help="A folder for the results.")] = Path("out/measured"),
    date: Annotated[str, typer.Option(help="Date of the results that are gone on with.  [default: today, UTC]")] = "",
    device: DeviceOption = "auto",
    shows: Annotated[bool, typer.Option("--list", help="List the pieces and run nothing.")] = False,
) -> None:
    """Run all measurements, piece by piece."""
    kind = EngineConfig(device=device).resolve_device().type
    pieces = dict(enumerate(read_pieces(kind), 1))
    check_names(map(str, piece or ()), map(str, pieces), "piece")
    chosen = {number: pieces[number] for number in piece or pieces}
    if shows:
        rows = [(str(number), step.name, str(step.minutes), step.text) for number in chosen for step in chosen[number]]
        print(as_table([("piece", "name", "minutes", "commands"), *rows]))
        return
    if kind == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    failed = []
    for number, steps in chosen.items():
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # keeps no GPU memory
            anchor = pool.submit(time_anchor, kind).result()
        failed += run_piece(number, steps, anchor, out, date)
    if failed:
        raise MaskjetError(f"{len(failed)} measurements failed: {', '.join(failed)}. Run the same command again.")


if __name__ == "__main__":
    start(main)
