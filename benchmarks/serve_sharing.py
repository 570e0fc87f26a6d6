"""How connections that stay are shared out among the processes of a service, and how fast each way is.

    python -m benchmarks.serve_sharing --model rf-detr-seg-nano --weights nano.pt --device cuda:0 \
        --processes 1 --processes 2 --processes 4 --clients 8 --clients 32 --clients 96 \
        --tree old=../old/src --tree new=src --size 312

Each tree is a folder with a version of maskjet; they take turns. `--fake-ms 2` replaces the engine by one that sleeps
outside the interpreter's lock, for machines without a GPU.

With `--rule` one service follows several rules for a second batch in turns: whether it starts beside one under way, as
`Dispatcher._may_start` decides it.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.command import SizesOption, check_names, start
from benchmarks.image_files import coco_sizes
from benchmarks.serve import draw_images, plant
from benchmarks.serve_load import Outcome
from benchmarks.serve_processes import run_load, started
from maskjet.cli.options import ModelOption, WeightsOption, parse_size, print_result
from maskjet.serve.dispatcher import Dispatcher

RULES: Mapping[str, Callable[[int], float]] = {
    "at-once": lambda _: 1,
    "half": lambda running: running / 2,
    "two": lambda running: min(running, 2),
    "four": lambda running: min(running, 4),
    "beyond-four": lambda running: running if running > 4 else 1,
    "not-smaller": lambda running: running,
}
"""From how many waiting images on a batch starts, by the images of batches under way."""
_RULE_S = 0.1  # until a service follows another rule; less than a warm-up
FAKE = """
import threading, time
from maskjet.serve import dispatcher

class Fake:
    def __init__(self, model):
        self._model, self._found, self._lock = model, None, threading.Lock()

    def __getattr__(self, name):
        return getattr(self._model, name)

    def predict(self, images, **options):
        if not images:
            return self._model.predict(images, **options)
        with self._lock:
            self._found = self._found or self._model.predict(images[:1], threshold=0.5)
        time.sleep({seconds})
        return self._found * len(images)

init = dispatcher.Dispatcher.__init__
dispatcher.Dispatcher.__init__ = lambda self, name, model, *more, **options: init(
    self, name, Fake(model), *more, **{{**options, "batch": 8}}
)
"""
"""An engine that answers each batch alike; Python runs this at the start of each process."""
FOLLOW = """
from benchmarks.serve_sharing import follow_rule

follow_rule({file!r})
"""
"""Lets a process follow a rule, likewise."""


@dataclass(frozen=True)
class Measured:
    """One row of the table."""

    tree: str
    """Version of maskjet."""
    processes: int
    """Processes of the service."""
    size: str
    """Size of the images."""
    clients: int
    """Clients, each with a connection that stays."""
    start_s: float
    """Seconds from the start of the service until it was ready."""
    per_second: float
    """Requests per second, the median of the runs."""
    p50_ms: float
    """Median latency of the median run."""
    p99_ms: float
    """99th percentile of the median run."""
    unevenness: float
    """Connections of the process with the most, divided by the mean; the median of the runs."""
    rule: str = ""
    """Rule for a second batch; empty for the service's own."""

    def __str__(self) -> str:
        return (
            f"{self.rule or self.tree:12} {self.processes:2} processes, {self.size:>9}, {self.clients:3} clients: "
            f"{self.per_second:8,.0f} /s, p50 {self.p50_ms:7.1f} ms, p99 {self.p99_ms:7.1f} ms, "
            f"most/mean {self.unevenness:.2f}, ready after {self.start_s:.1f} s"
        )


def unevenness(outcome: Outcome, processes: int) -> float:
    """Connections of the process with the most, divided by the mean of all."""
    return max(outcome.processes.values()) * processes / outcome.processes.total()


def sum_up(outcomes: Sequence[Outcome], **known: str | float) -> Measured:
    """The row of several runs; `known` are its other fields."""
    middle = sorted(outcomes, key=lambda each: each.per_second)[len(outcomes) // 2]
    cuts = statistics.quantiles(middle.latencies_ms, n=100)
    uneven = statistics.median(unevenness(each, int(known["processes"])) for each in outcomes)
    return Measured(per_second=middle.per_second, p50_ms=cuts[49], p99_ms=cuts[98], unevenness=uneven, **known)  # type: ignore[arg-type]


def follow_rule(file: str) -> None:
    """Let the dispatchers of this process follow the rule that a file names, which may change."""
    rule = RULES[Path(file).read_text()]

    def watch() -> None:
        nonlocal rule
        while True:
            time.sleep(_RULE_S)
            rule = RULES.get(Path(file).read_text(), rule)  # it may be half written

    def may_start(self: Dispatcher) -> bool:
        return len(self._waiting) >= max(1, rule(self._running))

    threading.Thread(target=watch, daemon=True).start()
    Dispatcher._may_start = may_start  # type: ignore[method-assign]


def _draw(folder: Path, size: str) -> list[Path]:
    """Images of a size; "coco" has 200 sizes, as COCO's images have them."""
    if size == "coco":
        return [path for size_hw in coco_sizes(200) for path in draw_images(folder, size_hw, 1)]
    return draw_images(folder, parse_size(size))


def main(
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    device: Annotated[str, typer.Option(help="Device of all processes.")] = "cpu",
    processes: Annotated[list[int] | None, typer.Option(help="Processes of the service; repeatable.")] = None,
    clients: Annotated[list[int] | None, typer.Option(help="Clients at a time; repeatable.")] = None,
    size: SizesOption = None,
    tree: Annotated[list[str] | None, typer.Option(help="NAME=FOLDER of a version of maskjet; repeatable.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help=f"{', '.join(RULES)}; repeatable.")] = None,
    fake_ms: Annotated[float | None, typer.Option(help="Milliseconds of a fake engine's batch.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds of each run.")] = 3.0,
    runs: Annotated[int, typer.Option(help="Runs of each load.")] = 3,
    generators: Annotated[int | None, typer.Option(help="Processes of the load generator.")] = None,
) -> None:
    """Time how a service shares out connections among its processes."""
    trees = dict(each.split("=", 1) for each in tree or [f"new={Path(__file__).parents[1] / 'src'}"])
    rules = tuple(rule or ("",))
    check_names(rule or (), RULES, "rule")
    generators = generators or max(1, len(os.sched_getaffinity(0)) // 4)
    with TemporaryDirectory() as text:
        folder = Path(text)
        named = folder / "rule"
        files = {each: _draw(folder, each) for each in size or ("312",)}
        chosen = plant(model, weights, next(iter(files.values())), folder)
        named.write_text(rules[0])
        patches = [FAKE.format(seconds=fake_ms / 1e3)] if fake_ms is not None else []
        patches += [FOLLOW.format(file=str(named))] if rule else []
        (folder / "sitecustomize.py").write_text("".join(patches))
        for count in processes or (1, 2, 4):
            for name, source in trees.items():
                command = ["maskjet", "serve", *chosen, "--device", device, "--processes", str(count), "--queue", "256"]
                before = [str(Path(source).resolve()), text, str(Path(__file__).parents[1])]
                path = os.pathsep.join([*before, *filter(None, [os.environ.get("PYTHONPATH")])])
                begun = time.monotonic()
                with started(
                    name, command, path="/v1/predict", ready="/health/ready", variables={"PYTHONPATH": path}
                ) as server:
                    start_s = time.monotonic() - begun
                    for shown, images in files.items():
                        for number in clients or (8, 32, 96):
                            plan = server.plan(
                                list(map(str, images)), clients=number, seconds=seconds, warm_up_s=1.0, is_asking=True
                            )
                            outcomes: dict[str, list[Outcome]] = {each: [] for each in rules}
                            for each in rules * runs:
                                named.write_text(each)
                                outcomes[each].append(run_load(plan, generators))
                            for each, of_rule in outcomes.items():
                                known: dict[str, str | float] = {"tree": name, "rule": each, "processes": count}
                                known |= {"size": shown, "clients": number, "start_s": start_s}
                                print_result(sum_up(of_rule, **known), to_stdout=True)


if __name__ == "__main__":
    start(main)
