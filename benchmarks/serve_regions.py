"""Raw frames by gRPC: in the message, in system shared memory and in a GPU's memory, each client a process of its own.

    python -m benchmarks.serve_regions --model rf-detr-seg-nano --clients 1 --clients 8 --size 720p

A closed loop of `tritonclient.grpc`: each client writes its next frame where the service reads it, and asks. Needs
`maskjet[grpc]`, `tritonclient[http]`, and cuda-bindings for a GPU's memory.
"""

from __future__ import annotations

import base64
import ctypes
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.command import SizesOption, start
from benchmarks.peers.loading import load_module
from benchmarks.serve import ClientsOption, draw_images, plant, serving
from benchmarks.serve_processes import free_port
from maskjet import traffic
from maskjet.cli.options import ModelOption, WeightsOption, parse_size, print_result
from maskjet.timing import percentile

WAYS = ("message", "system", "cuda")
_FRAMES = 8  # in rotation
_WARM_UP_S = 1.5


@dataclass(frozen=True)
class Measured:
    """One row of the table."""

    size: str
    """Size of the frames."""
    way: str
    """Where frames are: in the message, or in memory of the system or of a GPU."""
    clients: int
    """Clients at a time."""
    per_second: float
    """Answers per second of all clients."""
    p50_ms: float
    """Median time from a frame on the client's side to its answer, the writing of it included."""
    p99_ms: float
    """The time that 99 % of the requests took at most."""

    def __str__(self) -> str:
        return (
            f"{self.size:>6} {self.way:>8} {self.clients:>3} clients: {self.per_second:8,.0f} frames/s, "
            f"p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms"
        )


def measure(name: str, port: int, size: str, way: str, clients: int, seconds: float) -> Measured:
    """Time a number of clients at once."""
    spawn = multiprocessing.get_context("spawn")
    ready, answers = spawn.Barrier(clients), spawn.Queue()
    arguments = (name, port, parse_size(size), way, seconds, ready, answers)
    processes = [spawn.Process(target=_ask, args=(number, *arguments), daemon=True) for number in range(clients)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(30)
    rate = sum(len(times) / seconds for times in found)
    times_ms = [1e3 * each for times in found for each in times]
    return Measured(size, way, clients, rate, statistics.median(times_ms), percentile(times_ms, 0.99))


def _ask(
    number: int, name: str, port: int, size_hw: tuple[int, int], way: str, seconds: float, ready: Any, answers: Any
) -> None:
    """A client's process."""
    grpc: Any = load_module("tritonclient.grpc", "tritonclient[grpc]")
    frames = [traffic.sample(seed=10 * number + each, size_hw=size_hw).image for each in range(_FRAMES)]
    tensor = grpc.InferInput("image", list(frames[0].shape), "UINT8")
    with grpc.InferenceServerClient(f"127.0.0.1:{port}") as client, _writing(client, tensor, way, number) as write:
        ready.wait(120)
        times: list[float] = []
        begun, end = time.perf_counter(), time.perf_counter() + _WARM_UP_S + seconds
        while (at := time.perf_counter()) < end:
            write(frames[len(times) % _FRAMES])
            client.infer(name, [tensor])
            if at > begun + _WARM_UP_S:
                times.append(time.perf_counter() - at)
    answers.put(times)


@contextmanager
def _writing(client: Any, tensor: Any, way: str, number: int) -> Iterator[Callable[[np.ndarray[Any, Any]], object]]:
    """A function that puts a frame where the service reads it."""
    size, region = int(np.prod(tensor.shape())), f"client-{number}"
    if way == "message":
        yield tensor.set_data_from_numpy
        return
    tensor.set_shared_memory(region, size)
    if way == "system":
        memory = SharedMemory(create=True, size=size)
        place: np.ndarray[Any, Any] = np.ndarray(size, np.uint8, memory.buf)
        client.register_system_shared_memory(region, memory.name, size)
        yield lambda frame: np.copyto(place, frame.ravel())
        client.unregister_system_shared_memory(region)
        del place
        memory.unlink()
        return
    runtime: Any = load_module("cuda.bindings.runtime", "cuda-bindings")
    _, pointer = runtime.cudaMalloc(size)
    _, handle = runtime.cudaIpcGetMemHandle(pointer)
    raw = bytes((ctypes.c_char * 64).from_address(handle.getPtr()))
    client.register_cuda_shared_memory(region, base64.b64encode(raw), 0, size)
    copy, to_device = runtime.cudaMemcpy, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
    yield lambda frame: (copy(pointer, frame.ctypes.data, size, to_device), runtime.cudaDeviceSynchronize())
    client.unregister_cuda_shared_memory(region)


def main(
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    processes: Annotated[str, typer.Option(help="Processes of maskjet serve.")] = "auto",
    clients: ClientsOption = None,
    size: SizesOption = None,
    way: Annotated[list[str] | None, typer.Option(help="message, system or cuda; repeatable.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds of each run.")] = 3.0,
) -> None:
    """Time raw frames by gRPC and shared memory."""
    ways = way or (WAYS if torch.cuda.is_available() else WAYS[:2])
    with TemporaryDirectory() as text:
        folder, port = Path(text), free_port()
        chosen = plant(model, weights, draw_images(folder, parse_size((size or ["720p"])[0])), folder)
        with serving(chosen, [], "--processes", processes, "--grpc-port", str(port)):
            for shown in size or ["720p"]:
                for each in ways:
                    for number in clients or (1, 8):
                        print_result(measure(model, port, shown, each, number, seconds), to_stdout=True)


if __name__ == "__main__":
    start(main)
