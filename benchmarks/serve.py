"""Time `maskjet serve` beside other servers of the same model, on this machine, over 127.0.0.1.

    python -m benchmarks.serve --out benchmarks/results/serve_cpu.json

Every server is a process of its own, as are the clients. All answers are compared with `predict`'s on the same JPEGs,
those of the first round before anything is timed. Servers take turns; numbers are medians of the runs. The floor is the
load generator against a server that does nothing, the ceiling is `Model.stream`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import cv2
import torch
import typer
from safetensors.torch import save_file

from benchmarks.command import OnlyOption, ReportOption, SizesOption, check_names, start
from benchmarks.peers.loading import check_spec, load_module
from benchmarks.planted import plant_network
from benchmarks.serve_processes import Server, run_ceiling, run_load, started
from benchmarks.serve_report import Ceiling, ServeCost, ServeReport, agree, sum_up
from maskjet import traffic
from maskjet.checks import check_count
from maskjet.cli.options import ModelOption, WeightsOption, parse_size, print_result, progress, with_config
from maskjet.config import EngineConfig
from maskjet.errors import MaskjetError, first_line
from maskjet.host.devices import choose
from maskjet.host.machine import describe_machine
from maskjet.model import read_network
from maskjet.sources.images import read_image
from maskjet.spec import SPECS

NAMES = ("maskjet serve", "FastAPI + predict", "LitServe + rfdetr")
"""Servers that are compared."""
FLOOR = "floor"
"""Name of the server that does nothing."""
_IMAGES = 16
_QUALITY = 90
_PLANTED = 25  # masks per frame
_CONNECTIONS = 64  # of an open loop
_LEAST_MATCHED = 0.9  # share of detections; rfdetr rounds otherwise
_HALF = 0.5
_CEILING_S = 2.0  # at least, for each of its measurements
_FLOOR_S = 1.0
_WARM_UP_S = 1.5  # GPUs capture graphs for batches of a size when they first come


def run(
    path: Path | None = None,
    *,
    model: str = "demo",
    weights: Path | None = None,
    sizes_hw: Sequence[tuple[int, int]] = ((176, 312), (720, 1280)),
    clients: Sequence[int] = (1, 8, 32),
    config: EngineConfig | None = None,
    seconds: float = 3.0,
    half_seconds: float = 12.0,
    runs: int = 3,
    processes: int | None = None,
    served_by: Sequence[int] = (),
    only: Sequence[str] = (),
    on_progress: Callable[[], object] = lambda: None,
) -> ServeReport:
    """Compare and time the servers.

    Args:
        path: A JSON file to write the report to, after each size.
        model: A model of `maskjet.load`; a named size without weights gets random ones that find about 25 masks.
        weights: A weights file of `maskjet.load`.
        sizes_hw: (height, width) of the images.
        clients: Numbers of clients that send their next request when they have their answer.
        config: Device, precision and engine; None for the defaults.
        seconds: Seconds of each run.
        half_seconds: Seconds of a run at half of the highest rate that the clients reached.
        runs: Runs of each load, at least 1.
        processes: Processes of the load generator; None for one per four cores.
        served_by: Numbers of processes of `maskjet serve`, a server for each; empty for what it chooses.
        only: Names of servers; empty for all.
        on_progress: Called after each load.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above.
        MaskjetError: A server finds other things than `predict`.
    """
    check_count("runs", runs)
    check_names(only, NAMES)
    machine, config = describe_machine(), config or EngineConfig()
    processes = processes or max(1, len(os.sched_getaffinity(0)) // 4)
    with TemporaryDirectory() as text, ExitStack() as stack:
        folder = Path(text)
        files = {size_hw: draw_images(folder, size_hw) for size_hw in sizes_hw}
        model_arguments = plant(model, weights, files[sizes_hw[0]], folder)
        engine = engine_arguments(config)
        found = {
            size_hw: run_ceiling(files[size_hw], [*model_arguments, *engine], max(_CEILING_S, seconds))
            for size_hw in sizes_hw
        }
        names = [name for name in NAMES if name in (only or NAMES)]
        servers, notes = _start(stack, names, model_arguments, config, served_by)
        bench = _Bench(servers, seconds, runs, processes, on_progress)
        costs: list[ServeCost] = []
        result = ServeReport(
            machine,
            costs,
            notes,
            [_to_ceiling(size_hw, each) for size_hw, each in found.items()],
            model,
            next(iter(found.values()))["report"],
            runs,
            seconds,
        )
        for size_hw in sizes_hw:
            expected = found[size_hw]["expected"]
            costs += bench.measure(size_hw, [str(file) for file in files[size_hw]], expected, clients, half_seconds)
            result.write(path)
    return result


def draw_images(folder: Path, size_hw: tuple[int, int], count: int = _IMAGES) -> list[Path]:
    """Draw streets and write them as JPEGs."""
    files = []
    for seed in range(count):
        image = traffic.sample(seed=seed, size_hw=size_hw).image
        file = folder / f"{size_hw[1]}x{size_hw[0]}_{seed:02}.jpg"
        cv2.imwrite(str(file), cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        files.append(file)
    return files


def plant(model: str, weights: Path | None, files: Sequence[Path], folder: Path) -> list[str]:
    """The command line's arguments for a model; a named size without weights is planted first."""
    if model in SPECS and weights is None:
        images = [read_image(file) for file in files[:8]]
        network = plant_network(SPECS[model], images, survivors=_PLANTED)
        weights = folder / "planted.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, weights)
    return ["--model", model, *([] if weights is None else ["--weights", str(weights)])]


def engine_arguments(config: EngineConfig) -> list[str]:
    """The command line's arguments for the engine."""
    arguments = ["--device", config.device, "--precision", config.precision, "--engine", config.engine]
    return arguments if config.compile is None else [*arguments, "--compile" if config.compile else "--no-compile"]


@contextmanager
def serving(model: Sequence[str], engine: Sequence[str], *more: str, name: str = NAMES[0]) -> Iterator[Server]:
    """Run `maskjet serve` until the block ends; takes its model's and its engine's arguments."""
    with started(
        name, ["maskjet", "serve", *model, *engine, *more], path="/v1/predict", ready="/health/ready"
    ) as server:
        yield server


def _start(
    stack: ExitStack, names: Sequence[str], model: Sequence[str], config: EngineConfig, served_by: Sequence[int]
) -> tuple[list[Server], list[str]]:
    """Start the servers that can run here, one after the other; returns the reasons why others are left out."""
    engine, device = engine_arguments(config), ["--device", config.device]
    ours = "benchmarks.serve_servers"
    workers = [
        "--workers",
        str(len(choose(config.device, config.check_cpu, None))),
    ]  # as many as `maskjet serve` has processes
    makers: dict[str, Callable[[], Any]] = {
        NAMES[0]: lambda: serving(model, engine),
        NAMES[1]: lambda: started(NAMES[1], [ours, "fastapi", *model, *engine], path="/predict", ready="/docs"),
        NAMES[2]: lambda: _litserve([ours, "litserve", *model, *device, *workers], model),
        FLOOR: lambda: started(FLOOR, [ours, "floor"], path="/", ready="/"),
    }
    for count in served_by:
        name = f"{NAMES[0]}, {count} processes"
        makers |= {name: partial(serving, model, engine, "--processes", str(count), name=name)}
    if served_by and NAMES[0] in names:
        names = [*(name for name in makers if name.startswith(f"{NAMES[0]},")), *names[1:]]
    servers, notes = [], []
    for name in (*names, FLOOR):
        try:
            servers.append(stack.enter_context(makers[name]()))
        except MaskjetError as error:
            notes.append(f"{name} left out: {first_line(error)}")
    return servers, notes


def _litserve(command: Sequence[str], model: Sequence[str]) -> Any:
    load_module("litserve", "litserve==0.2.19")
    weights = model[model.index("--weights") + 1] if "--weights" in model else None
    check_spec(read_network(model[1], weights).spec)
    return started(NAMES[2], command, path="/predict", ready="/health", is_form=True)


def _to_ceiling(size_hw: tuple[int, int], found: Mapping[str, Any]) -> Ceiling:
    names = ("stream_fps", "stream_how", "files_fps", "files_how", "decode_ms", "predict_ms", "encode_ms")
    return Ceiling(size_hw, **{name: found[name] for name in names})


class _Bench:
    """Measures servers that run.

    Args:
        servers: The servers, the floor last.
        seconds: Seconds of each run.
        runs: Runs of each load.
        processes: Processes of the load generator.
        on_progress: Called after each load.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        seconds: float,
        runs: int,
        processes: int,
        on_progress: Callable[[], object],
    ) -> None:
        self._servers, self._seconds, self._runs = servers, seconds, runs
        self._processes, self._on_progress = processes, on_progress

    def measure(
        self,
        size_hw: tuple[int, int],
        files: Sequence[str],
        expected: Sequence[Mapping[str, Any]],
        clients: Sequence[int],
        half_seconds: float,
    ) -> list[ServeCost]:
        """Compare on all images, then time each number of clients, then half of the highest rate."""
        for server in self._servers:
            if server.name != FLOOR:
                _check(server, files, expected)
        costs: list[ServeCost] = []
        for number in clients:
            rates = dict.fromkeys((each.name for each in self._servers), None)
            costs += self._take_turns(size_hw, files, expected, number, rates, self._seconds, self._runs)
        half = {
            server.name: _HALF * max(cost.per_second for cost in costs if cost.server == server.name)
            for server in self._servers
            if server.name != FLOOR
        }
        return costs + self._take_turns(size_hw, files, expected, _CONNECTIONS, half, half_seconds, 1)

    def _take_turns(
        self,
        size_hw: tuple[int, int],
        files: Sequence[str],
        expected: Sequence[Mapping[str, Any]],
        clients: int,
        rates: Mapping[str, float | None],
        seconds: float,
        runs: int,
    ) -> list[ServeCost]:
        servers = [server for server in self._servers if server.name in rates]
        outcomes: dict[str, list[Any]] = {server.name: [] for server in servers}
        for turn in range(runs):
            for server in servers:
                if server.name == FLOOR and turn:
                    continue
                span = _FLOOR_S if server.name == FLOOR else seconds
                plan = server.plan(
                    files,
                    clients=clients,
                    seconds=span,
                    rate=rates[server.name],
                    first=turn,
                    warm_up_s=_WARM_UP_S,
                )
                outcomes[server.name].append(run_load(plan, self._processes))
                self._on_progress()
        return [
            sum_up(
                outcomes[server.name],
                server=server.name,
                size_hw=size_hw,
                clients=clients,
                rate=rates[server.name],
                expected=None if server.name == FLOOR else expected,
                load=round(os.getloadavg()[0], 2),
            )
            for server in servers
        ]


def _check(server: Server, files: Sequence[str], expected: Sequence[Mapping[str, Any]]) -> None:
    """Compare a server's answers on all images, one after the other, with `predict`'s.

    Raises:
        MaskjetError: They differ by more than rounding explains.
    """
    outcome = run_load(server.plan(files, count=len(files)))
    found = agree(outcome, expected)
    # Processes that share a CPU have fewer threads, and a GPU decodes JPEGs: they round otherwise.
    is_exact = server.name in (NAMES[1:2] if torch.cuda.is_available() else NAMES[:2])
    if outcome.errors or found.answers < len(files):
        raise MaskjetError(f"{server.name} must answer each image with 200, got {dict(outcome.statuses)}.")
    if found.matched < _LEAST_MATCHED or (is_exact and found.equal < len(files)):
        raise MaskjetError(
            f"{server.name} must find the same as predict, {found.equal} of {found.answers} answers are equal and "
            f"{found.matched:.1%} of the detections are matched."
        )


ClientsOption = Annotated[list[int] | None, typer.Option("--clients", help="Clients at a time; repeatable.")]


@with_config("device", "precision", "engine", "compile")
def main(
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    size: SizesOption = None,
    clients: ClientsOption = None,
    seconds: Annotated[float, typer.Option(help="Seconds of each run.")] = 3.0,
    half_seconds: Annotated[float, typer.Option(help="Seconds at half of the highest rate.")] = 12.0,
    runs: Annotated[int, typer.Option(help="Runs of each load; the median counts.")] = 3,
    processes: Annotated[int | None, typer.Option(help="Processes of the load generator.")] = None,
    served_by: Annotated[list[int] | None, typer.Option(help="Processes of maskjet serve; repeatable.")] = None,
    only: OnlyOption = None,
    out: ReportOption = None,
    config: EngineConfig,
) -> None:
    """Time maskjet serve beside other servers of the same model."""
    sizes_hw = [parse_size(each) for each in size or ("312", "720p")]
    with progress("serving", None) as advance:
        found = run(
            out,
            model=model,
            weights=weights,
            sizes_hw=sizes_hw,
            clients=clients or (1, 8, 32),
            config=config,
            seconds=seconds,
            half_seconds=half_seconds,
            runs=runs,
            processes=processes,
            served_by=served_by or (),
            only=only or (),
            on_progress=advance,
        )
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
