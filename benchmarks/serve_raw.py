"""Raw frames by the Open Inference Protocol, each client a process of its own.

    python -m benchmarks.serve_raw --model rf-detr-seg-nano --clients 1 --clients 8 --size 720p

A closed loop of `tritonclient`: each client puts its next frame into a request, and asks. Needs `tritonclient[http]`.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
import urllib.request
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.command import SizesOption, start
from benchmarks.peers.loading import load_module
from benchmarks.serve import ClientsOption, draw_images, plant, serving
from benchmarks.serve_processes import Server
from maskjet import traffic
from maskjet.cli.options import ModelOption, WeightsOption, parse_size, print_result
from maskjet.host.timing import percentile

_FRAMES = 8  # in rotation
_WARM_UP_S = 1.5


@dataclass(frozen=True)
class Measured:
    """One row of the table."""

    size: str
    """Size of the frames."""
    clients: int
    """Clients at a time."""
    per_second: float
    """Answers per second of all clients."""
    p50_ms: float
    """Median time from a frame on the client's side to its answer."""
    p99_ms: float
    """The time that 99 % of the requests took at most."""
    client_cpu_ms: float
    """CPU time that a request takes its client."""
    most_share: float
    """The busiest process' answers, over the mean of the processes; connections stay with one."""

    def __str__(self) -> str:
        return (
            f"{self.size:>6} {self.clients:>3} clients: "
            f"{self.per_second:8,.0f} frames/s, p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms; "
            f"client's CPU {self.client_cpu_ms:.2f} ms, busiest process {self.most_share:.1f} times the mean"
        )


def measure(name: str, server: Server, size: str, clients: int, seconds: float) -> Measured:
    """Time a number of clients at once."""
    spawn = multiprocessing.get_context("spawn")
    ready, answers = spawn.Barrier(clients), spawn.Queue()
    before = _count_answers(server)
    arguments = (name, server.port, parse_size(size), seconds, ready, answers)
    processes = [spawn.Process(target=_ask, args=(number, *arguments), daemon=True) for number in range(clients)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(30)
    times_ms = [1e3 * each for _, times in found for each in times]
    shares = [after - before.get(process, 0) for process, after in _count_answers(server).items()]
    return Measured(
        size,
        clients,
        len(times_ms) / seconds,
        statistics.median(times_ms),
        percentile(times_ms, 0.99),
        1e3 * sum(cpu_s for cpu_s, _ in found) / len(times_ms),
        max(shares) / statistics.mean(shares),
    )


def _count_answers(server: Server) -> dict[str, float]:
    """Requests that each process of the service has answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    counts: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        if sample.name == "maskjet_images_total":
            process = sample.labels.get("process", "0")
            counts[process] = counts.get(process, 0) + sample.value
    return counts


def _ask(
    number: int,
    name: str,
    port: int,
    size_hw: tuple[int, int],
    seconds: float,
    ready: Any,
    answers: Any,
) -> None:
    """A client's process."""
    triton: Any = load_module("tritonclient.http", "tritonclient[http]")
    frames = [traffic.sample(seed=10 * number + each, size_hw=size_hw).image for each in range(_FRAMES)]
    tensor = triton.InferInput("image", list(frames[0].shape), "UINT8")
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        times: list[float] = []

        def ask(until: float) -> None:
            while (at := time.perf_counter()) < until:
                tensor.set_data_from_numpy(frames[len(times) % _FRAMES])
                client.infer(name, [tensor])
                times.append(time.perf_counter() - at)

        ready.wait(120)
        ask(time.perf_counter() + _WARM_UP_S)
        times.clear()
        begun_s = time.process_time()
        ask(time.perf_counter() + seconds)
        answers.put((time.process_time() - begun_s, times))


def main(
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    processes: Annotated[str, typer.Option(help="Processes of maskjet serve.")] = "auto",
    clients: ClientsOption = None,
    size: SizesOption = None,
    seconds: Annotated[float, typer.Option(help="Seconds of each run.")] = 3.0,
) -> None:
    """Time raw frames."""
    with TemporaryDirectory() as text:
        folder = Path(text)
        chosen = plant(model, weights, draw_images(folder, parse_size((size or ["720p"])[0])), folder)
        with serving(chosen, [], "--processes", processes) as server:
            for shown, number in product(size or ["720p"], clients or (1, 8)):
                print_result(measure(model, server, shown, number, seconds), to_stdout=True)


if __name__ == "__main__":
    start(main)
