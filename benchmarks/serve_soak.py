"""Load `maskjet serve` fully, among clients that break off, send garbage, stall or ask for the moon.

    python -m benchmarks.serve_soak --seconds 1200 --out benchmarks/results/serve_soak_cpu.json

Each client that waits for an answer must get one, and each image that is answered with 200 the result of `predict`.
The service's memory and descriptors are sampled; a light probe of /health/live, from a process of its own, bounds how
long the event loop was blocked from above: its time includes the way through two loaded processes. The soak fails if
one probe takes longer than `MOST_BLOCK_S`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.command import ReportOption, start
from benchmarks.serve import draw_images, engine_arguments, plant, serving
from benchmarks.serve_attacks import BAD
from benchmarks.serve_load import Connection, Plan, parse_head, run_here
from benchmarks.serve_processes import run_ceiling
from benchmarks.serve_report import Agreement, agree
from benchmarks.trend import Sampler, Trend
from maskjet.cli.options import ModelOption, WeightsOption, print_result, with_config
from maskjet.config import EngineConfig
from maskjet.errors import MaskjetError
from maskjet.host.files import write_json
from maskjet.host.machine import describe_machine
from maskjet.host.timing import percentile

_SIZES_HW = ((176, 312), (720, 1280))
_ANSWER_S = 60.0
_PAUSE_S = 0.05  # of a bad client between its requests
_PROBE_S = 0.02
_BODY_S = 3.0  # of the service, so that stalled requests end
MOST_BLOCK_S = 0.5
"""Seconds for which the event loop may be held, on a machine that is fully loaded."""


class _BadClients:
    """One client of each bad kind, again and again; those that wait count the answers.

    Args:
        port: The service's.
        files: Images.
        seconds: How long.
    """

    def __init__(self, port: int, files: Sequence[str], seconds: float) -> None:
        self._port, self._end = port, time.perf_counter() + seconds
        self._images = [Path(file).read_bytes() for file in files]
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in BAD}

    async def run(self) -> None:
        """Let all of them loose."""
        await asyncio.gather(*(self._misbehave(name, seed) for seed, name in enumerate(BAD)))

    async def _misbehave(self, name: str, seed: int) -> None:
        rng = random.Random(seed)
        while time.perf_counter() < self._end:
            request, waits = BAD[name](rng, self._images)
            self.counts[name][await self._send(request, waits=waits, rng=rng)] += 1
            await asyncio.sleep(_PAUSE_S)

    async def _send(self, request: bytes, *, waits: bool, rng: random.Random) -> str:
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(request)
                    if not waits:
                        await asyncio.sleep(rng.random() * 0.3)
                        return "gone"
                    return str(parse_head(await reader.readuntil(b"\r\n\r\n"))[0])
                finally:
                    writer.close()
        except (OSError, EOFError, TimeoutError) as error:
            return type(error).__name__ if waits else "gone"


def _run_bad(port: int, files: Sequence[str], seconds: float, result: Any) -> None:
    clients = _BadClients(port, files, seconds)
    asyncio.run(clients.run())
    result.put({name: dict(counts) for name, counts in clients.counts.items()})


def _run_good(plan: Plan, result: Any) -> None:
    result.put(run_here(plan).as_dict())


def _run_probe(port: int, seconds: float, result: Any) -> None:
    async def run() -> list[float]:
        connection, times = Connection(port), []
        request = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            await connection.ask(request)
            times.append(1000 * (time.perf_counter() - begin))
            await asyncio.sleep(_PROBE_S)
        return times

    result.put(asyncio.run(run()))


@dataclass(frozen=True)
class Soak:
    """What a soak has shown."""

    machine: Any
    """The machine and its versions."""
    seconds: float
    """How long it took."""
    clients: int
    """Good clients, beside the bad ones."""
    statuses: dict[str, int]
    """Answers to good clients by status; a name is an exception for lack of an answer."""
    agreement: dict[str, Agreement]
    """How the results compare with `predict`'s, by size."""
    bad: dict[str, dict[str, int]]
    """What became of each kind of bad request."""
    unanswered: int
    """Requests whose client waited in vain."""
    failures: int
    """Requests answered with 500."""
    rss_mib: Trend
    """Memory of the service."""
    descriptors: Trend
    """Open descriptors of the service."""
    probe_ms: dict[str, float]
    """Percentiles of the time of /health/live under load."""
    load: float
    """Load average of the machine's last minute."""

    @property
    def longest_block_s(self) -> float:
        """Seconds for which the event loop was held at most, an upper bound."""
        return self.probe_ms["most"] / 1000

    def __str__(self) -> str:
        lines = [
            f"{self.seconds:.0f} s, {self.clients} clients: {self.statuses}, {self.unanswered} without an answer, "
            f"{self.failures} × 500; load {self.load}",
        ]
        lines += [f"{name}: {each}" for name, each in self.agreement.items()]
        lines += [f"bad: {name}: {counts}" for name, counts in self.bad.items()]
        lines += [f"RSS, MiB: {self.rss_mib}", f"descriptors: {self.descriptors}"]
        lines.append(f"/health/live, ms: {', '.join(f'{name} {value:.1f}' for name, value in self.probe_ms.items())}")
        return "\n".join(lines)


def soak(
    seconds: float,
    *,
    model: str = "demo",
    weights: Path | None = None,
    clients: int = 16,
    config: EngineConfig | None = None,
) -> Soak:
    """Run the service under load.

    Args:
        seconds: How long.
        model: A model of `maskjet.load`, or a named size, which gets random weights.
        weights: Its weights file.
        clients: Good clients, half of them for each size.
        config: Device, precision and engine; None for the defaults.
    """
    machine, config = describe_machine(), config or EngineConfig()
    with TemporaryDirectory() as text:
        folder = Path(text)
        files = {size_hw: draw_images(folder, size_hw) for size_hw in _SIZES_HW}
        chosen = plant(model, weights, files[_SIZES_HW[0]], folder)
        engine = engine_arguments(config)
        expected = {size: run_ceiling(files[size], [*chosen, *engine], 0.5)["expected"] for size in _SIZES_HW}
        limits = ("--body-s", str(_BODY_S), "--header-s", str(_BODY_S))
        with serving(chosen, engine, *limits) as server:
            sampler = Sampler(server.pid)
            sampler.start()
            good, bad, probe = _let_loose(server, files, clients, seconds, sampler)
            load = round(os.getloadavg()[0], 2)
    statuses: Counter[str] = Counter()
    for outcome in good.values():
        statuses += outcome.statuses
    answers = [*statuses.items(), *(item for counts in bad.values() for item in counts.items())]
    return Soak(
        machine,
        seconds,
        clients,
        dict(statuses),
        {f"{w}×{h}": agree(good[h, w], expected[h, w]) for h, w in _SIZES_HW},
        bad,
        sum(times for status, times in answers if not status.isdigit() and status != "gone"),
        sum(times for status, times in answers if status == "500"),
        sampler.trend("rss_mib"),
        sampler.trend("descriptors"),
        {"p50": statistics.median(probe), "p99": percentile(probe, 0.99), "most": max(probe)},
        load,
    )


def _let_loose(
    server: Any, files: Any, clients: int, seconds: float, sampler: Sampler
) -> tuple[dict[Any, Any], Any, list[float]]:
    """Run the good and the bad clients and the probe, each kind in a process of its own."""
    from benchmarks.serve_load import Outcome

    spawn = multiprocessing.get_context("spawn")
    names = {size_hw: [str(file) for file in files[size_hw]] for size_hw in _SIZES_HW}
    work: list[tuple[Any, tuple[Any, ...]]] = [
        (_run_good, (server.plan(names[size_hw], clients=clients // 2, seconds=seconds),)) for size_hw in _SIZES_HW
    ]
    work += [(_run_bad, (server.port, names[_SIZES_HW[0]], seconds)), (_run_probe, (server.port, seconds))]
    results = [spawn.Queue() for _ in work]
    children = [
        spawn.Process(target=function, args=(*arguments, result), daemon=True)
        for (function, arguments), result in zip(work, results, strict=True)
    ]
    for child in children:
        child.start()
    probe = results[-1].get(timeout=seconds + 3 * _ANSWER_S)
    sampler.stop()  # before the clients have gone
    small, large, bad = (result.get(timeout=3 * _ANSWER_S) for result in results[:-1])
    for child in children:
        child.join()
    good = {size: Outcome.from_dict(each) for size, each in zip(_SIZES_HW, (small, large), strict=True)}
    return good, bad, probe


@with_config("device", "precision", "engine", "compile")
def main(
    *,
    seconds: Annotated[float, typer.Option(help="How long.")] = 180.0,
    clients: Annotated[int, typer.Option(help="Good clients, half of them for each size.")] = 16,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    out: ReportOption = None,
    config: EngineConfig,
) -> None:
    """Load maskjet serve fully, among clients that misbehave."""
    found = soak(seconds, model=model, weights=weights, clients=clients, config=config)
    if out is not None:
        write_json(out, asdict(found))
    print_result(found, to_stdout=True)
    if found.longest_block_s > MOST_BLOCK_S:
        raise MaskjetError(f"The loop must be held for at most {MOST_BLOCK_S} s, it was for {found.longest_block_s} s.")


if __name__ == "__main__":
    start(main)
