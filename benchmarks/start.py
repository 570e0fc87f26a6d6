"""Seconds until something is there: commands, a program's first frame and a ready service, in fresh processes.

    python -m benchmarks.start --device cuda --out benchmarks/results/start_h200.json

Each is started with empty caches (cold) and with those that its cold start filled (warm): `~/.cache`, `~/.triton`,
numba's and PyTorch's, in a home of its own. Python's own bytecode and the system's file cache are there both times, as
after an install. All ways take turns; `import torch` beside them is what no start can do without. rfdetr is the peer,
as it comes and after `inference()` with torch.compile, where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from benchmarks.command import DeviceOption, OnlyOption, ReportOption, check_names, start
from maskjet.host.files import write_json
from maskjet.host.machine import describe_machine
from maskjet.host.tables import as_table, shown

_PATIENCE_S = 600.0
_NANO = "rf-detr-seg-nano"
_MASKJET = [sys.executable, "-m", "maskjet"]
_FIRST_FRAME = """
import json, sys, time
import torch
imported = time.monotonic()
import maskjet
from PIL import Image
model = maskjet.load(sys.argv[1], weights=sys.argv[2] or None, device=sys.argv[4])
loaded = time.monotonic()
model.predict(sys.argv[3])
found = time.monotonic()
model.predict(sys.argv[3])
print(json.dumps({"load": loaded - imported, "first": found - loaded, "second": time.monotonic() - found}))
"""
_PEERS_FIRST_FRAME = """
import sys
import torch, rfdetr
from PIL import Image
model = rfdetr.RFDETRSegNano(pretrain_weights=None, device=sys.argv[2])
if len(sys.argv) > 3:
    model.inference(dtype=torch.float16, compile_backend="inductor")
model.predict(Image.open(sys.argv[1]))
"""
_WRITE_WEIGHTS = """
import sys
from pathlib import Path
from benchmarks.serve import plant
plant(sys.argv[1], None, [Path(sys.argv[2])], Path(sys.argv[2]).parent)
"""


@dataclass(frozen=True)
class Started:
    """Seconds that one way took, a value per run."""

    name: str
    cold_s: list[float]
    warm_s: list[float]
    parts: list[Mapping[str, float]]
    """Seconds of a program's parts, cold and warm in turns; empty for others."""


def list_ways(folder: Path, device: str) -> dict[str, list[str]]:
    """The command line of each way; weights and an image are made in the folder."""
    subprocess.run([*_MASKJET, "traffic", "coco", str(folder), "--images", "1"], check=True, timeout=_PATIENCE_S)
    image = str(next(folder.rglob("*.jpg")))
    subprocess.run([sys.executable, "-c", _WRITE_WEIGHTS, _NANO, image], check=True, timeout=_PATIENCE_S)
    weights = str(next(folder.rglob("planted.safetensors")))
    on = ["--device", device]
    ways = {
        "import torch": [sys.executable, "-c", "import torch"],
        "maskjet --help": [*_MASKJET, "--help"],
        "maskjet info": [*_MASKJET, "info", "--model", "demo", *on],
        "maskjet run, an image": [*_MASKJET, "run", image, "-o", str(folder / "out.jsonl"), *on],
        "first frame of the demo": [sys.executable, "-c", _FIRST_FRAME, "demo", "", image, device],
        "first frame of Seg-Nano": [sys.executable, "-c", _FIRST_FRAME, _NANO, weights, image, device],
    }
    if all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "orjson")):
        ways["maskjet serve, ready"] = [*_MASKJET, "serve", "--port", "0", *on]
    if importlib.util.find_spec("rfdetr"):
        ways["first frame of rfdetr"] = [sys.executable, "-c", _PEERS_FIRST_FRAME, image, device]
        if device != "cpu":
            ways["first frame of rfdetr, compiled"] = [*ways["first frame of rfdetr"], "compiled"]
    return ways


def time_start(command: Sequence[str], home: Path) -> tuple[float, Mapping[str, float]]:
    """Seconds until a command has ended, or a service is ready; and those of its parts, if it prints them."""
    own = {
        "HOME": str(home),
        "NUMBA_CACHE_DIR": str(home / "numba"),  # of maskjet before 0.3, and of peers
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
    }
    given = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "MASKJET_CACHE_DIR")}
    begin, parts = time.monotonic(), dict[str, float]()
    with subprocess.Popen(
        command, env={**given, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith('{"load"'):
                    parts = json.loads(line)
                if line.startswith("maskjet: serving"):
                    return time.monotonic() - begin, parts
            if process.wait(_PATIENCE_S):
                raise RuntimeError(f"{' '.join(command)!r} ended with exit code {process.returncode}.")
            return time.monotonic() - begin, parts
        finally:
            process.send_signal(signal.SIGTERM)


def measure(ways: Mapping[str, Sequence[str]], runs: int, folder: Path) -> Iterator[Started]:
    """Start each way cold and then warm, in turns, and yield what each took."""
    found = {name: Started(name, [], [], []) for name in ways}
    for run in range(runs):
        for number, (name, command) in enumerate(ways.items()):
            home = folder / f"home-{run}-{number}"
            home.mkdir()
            for seconds in (found[name].cold_s, found[name].warm_s):
                took, parts = time_start(command, home)
                seconds.append(round(took, 3))
                typer.echo(f"{name}: {took:.2f} s {dict(parts)}", err=True)
                if parts:
                    found[name].parts.append(parts)
    yield from found.values()


def main(
    device: DeviceOption = "auto",
    runs: int = 5,
    only: OnlyOption = None,
    out: ReportOption = None,
) -> None:
    """Measure how long maskjet and rfdetr take to start."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        ways = list_ways(folder, device)
        check_names(only or [], ways)
        chosen = {each: command for each, command in ways.items() if each in (only or ways)}
        started = list(measure(chosen, runs, folder))
    rows: list[tuple[str, ...]] = [("seconds, median", "cold", "warm", "of cold: load, first frame", "of warm")]
    for each in started:
        parts = ["", ""]
        for number in range(2 if each.parts else 0):
            some = each.parts[number::2]
            parts[number] = ", ".join(
                shown(statistics.median(part[key] for part in some), 2) for key in ("load", "first")
            )
        rows.append(
            (each.name, *(shown(statistics.median(values), 2) for values in (each.cold_s, each.warm_s)), *parts)
        )
    typer.echo(as_table(rows))
    if out is not None:
        write_json(out, {"machine": asdict(describe_machine()), "started": [asdict(each) for each in started]})


if __name__ == "__main__":
    start(main)
