"""Time the network alone as a CUDA graph: fused, compiled by PyTorch and uncompiled, with errors against float32.

The weights are random. Beside each time stands the clock that the GPU kept, with --steps beside each kernel's time the
least that its bytes and its products take.

    python -m benchmarks.network --size rf-detr-seg-nano --batch 1 --batch 16 --steps --out network.json
"""

from __future__ import annotations

import copy
import inspect
import os
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.command import OnlyOption, ReportOption, check_names, start
from benchmarks.planted import randomise
from maskjet.checks import check_count
from maskjet.cli.options import print_result, progress
from maskjet.config import EngineConfig, RuntimeName
from maskjet.engine.slot import count_nodes
from maskjet.errors import UnsupportedError
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.model import Model
from maskjet.networks.rfdetr import RFDETR, NetworkOutput
from maskjet.networks.rfdetr.fused.forward import Forward
from maskjet.networks.rfdetr.fused.weights import fold
from maskjet.ops.refine_boxes.reference import move_boxes
from maskjet.spec import SPECS
from maskjet.traffic import sample
from tests.ops.cases import CHECKS
from tests.ops.network import OPS

RUNTIMES = ("fused", "compiled", "eager")
"""What runs the network."""
_INPUTS = 4  # rotated, so that none stays in a cache
_BANDWIDTH = {"H200": 4.8e12, "H100": 3.35e12}
"""Bytes per second of GPUs' memory, by NVIDIA's data sheets."""
_PRODUCTS = 989e12
"""Operations per second of an H100's and an H200's tensor cores in float16 (the same data sheets)."""
_NAMES: Mapping[str, RuntimeName] = {"fused": "fused", "compiled": "torch"}
"""Runtimes whose kernels are compiled, by the engine's names."""
_REPEATS = 20  # calls of one kernel per graph

Call = Callable[[Tensor], NetworkOutput]


@dataclass(frozen=True)
class NetworkCost:
    """One runtime with one network and batch size."""

    network: str
    batch: int
    runtime: str
    """One of `RUNTIMES`."""
    ms: float
    """Median time of a replay."""
    ghz: float
    """The multiprocessors' clock meanwhile, which the GPU lowers at its limit of power."""
    kernels: str
    """What the graph launches."""
    logit_error: float
    """Largest difference of class logits from float32 with the same tokens picked."""
    mask_error: float | None
    """That of mask logits; None without masks."""


@dataclass(frozen=True)
class StepCost:
    """All launches of a fused pass with the same op and shapes."""

    network: str
    batch: int
    step: str
    """What it writes: the name of the first such buffer."""
    op: str
    launches: int
    us: float
    """Median time of one."""
    bytes_us: float
    """The least time for its bytes, each tensor moved once."""
    products_us: float
    """The least time for its products."""


@dataclass(frozen=True)
class FirstFrame:
    """What a user waits for before the first frame, in a process of its own."""

    network: str
    runtime: str
    cache: str
    """Of compiled kernels: "cold" or "warm"."""
    seconds: float
    """From `Model` of a network in memory to the detections of the first frame."""


@dataclass(frozen=True, kw_only=True)
class NetworkReport(measuring.MeasuredReport):
    """All runtimes, and the steps of fused ones."""

    measurements: Sequence[NetworkCost]
    steps: Sequence[StepCost]
    first_frames: Sequence[FirstFrame]

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per runtime, network and batch."""
        rows: list[tuple[str, ...]] = [
            ("network", "batch", "runtime", "ms", "GHz", "images/s", "graph", "logits", "masks")
        ]
        for m in self.measurements:
            errors = (f"{m.logit_error:.1e}", "-" if m.mask_error is None else f"{m.mask_error:.1e}")
            rate = f"{m.batch / m.ms * 1000:.0f}"
            times = (f"{m.ms:.3f}", f"{m.ghz:.2f}", rate)
            rows.append((m.network, str(m.batch), m.runtime, *times, m.kernels, *errors))
        rows += [
            (f.network, "1", f.runtime, f"{f.seconds:.2f} s", "", "", f"first frame, {f.cache}", "", "")
            for f in self.first_frames
        ]
        for s in self.steps:
            times = (f"{s.us:.1f} us", f"{s.bytes_us:.1f}", f"{s.products_us:.1f}")
            rows.append((s.network, str(s.batch), s.step, *times, s.op, f"x {s.launches}", ""))
        return rows


@torch.inference_mode()
def run(
    path: Path | None = None,
    *,
    sizes: Sequence[str],
    batches: Sequence[int],
    only: Sequence[str] = RUNTIMES,
    runs: int = 40,
    has_steps: bool = False,
    has_first_frames: bool = False,
    on_progress: Callable[[], object] = lambda: None,
) -> NetworkReport:
    """Measure networks with random weights on the first GPU, in float16.

    Args:
        path: A JSON file to write the report to, after each measurement.
        sizes: Names of networks, of `SPECS`.
        batches: Images per pass.
        only: Runtimes, of `RUNTIMES`.
        runs: Timed replays of each.
        has_steps: Whether to time the launches of fused passes one by one.
        has_first_frames: Whether to time the first frame after loading, with and without compiled kernels on disk.
        on_progress: Called once a network is done with a batch.

    Raises:
        InputError: A name is not known, or runs is less than 1.
        UnsupportedError: There is no GPU.
    """
    check_count("runs", runs)
    check_names(sizes, SPECS, "size")
    check_names(only, RUNTIMES)
    if not torch.cuda.is_available():
        raise UnsupportedError("the network is timed on a GPU only.")
    costs: list[NetworkCost] = []
    steps: list[StepCost] = []
    first_frames: list[FirstFrame] = []
    result = NetworkReport(machine=describe_machine(), measurements=costs, steps=steps, first_frames=first_frames)
    for name in sizes:
        network = RFDETR(SPECS[name]).eval().requires_grad_(requires_grad=False)
        randomise(network.state_dict())
        network.cuda()
        for batch in batches:
            _measure(network, batch, only, runs, costs)
            if has_steps:
                steps += _time_steps(network, batch, runs)
            result.write(path)
            on_progress()
        if has_first_frames:
            first_frames += _time_first_frames(name, [each for each in only if each in _NAMES])
            result.write(path)
    return result


def pick_as(network: RFDETR, best: Tensor) -> RFDETR:
    """A copy of a network that picks given tokens, as which are the best changes with the last bit.

    Args:
        network: The network.
        best: Rows of the tokens among those of a batch, [B, queries].
    """

    def pick_boxes(self: Any, memory: Tensor) -> Tensor:
        tokens = self.enc_output_norm[0](self.enc_output[0](memory * self.is_inside))
        picked = (best.long() % self.anchors.shape[1])[..., None]
        chosen = tokens.gather(1, picked.expand(-1, -1, tokens.shape[-1]))
        anchors = self.anchors.expand(len(memory), -1, -1).gather(1, picked.expand(-1, -1, 4))
        return move_boxes(anchors, self.enc_out_bbox_embed[0](chosen))

    network = copy.deepcopy(network)
    network.transformer._pick_boxes = types.MethodType(pick_boxes, network.transformer)  # type: ignore[method-assign]
    return network


def _measure(network: RFDETR, batch: int, only: Sequence[str], runs: int, costs: list[NetworkCost]) -> None:
    from benchmarks.clock import Clock  # needs Triton

    images = torch.randn(_INPUTS, batch, 3, *network.spec.input_hw, device="cuda", dtype=torch.float16)
    forward = Forward(fold(network, torch.float16), batch)
    forward(images[0])
    picked = pick_as(network, forward._buffers["best"].clone())
    exact = picked(images[0].float())
    half = picked.cast(torch.float16)
    torch.compiler.reset()
    calls: dict[str, Call] = {
        "fused": forward,
        "compiled": torch.compile(half, fullgraph=True, dynamic=False),
        "eager": half,
    }
    for name in only:
        output = calls[name](images[0])
        errors = [
            None if one is None else float((one.float() - other.float()).abs().max())
            for one, other in ((exact.logits, output.logits), (exact.mask_logits, output.mask_logits))
            if other is not None
        ]
        given = images[0].clone()
        graph = capture(lambda call=calls[name], given=given: call(given))  # type: ignore[misc]
        with Clock() as clock:
            ms = time_graph(graph, runs, lambda turn, given=given: given.copy_(images[turn % _INPUTS]))  # type: ignore[misc]
        mask_error = errors[1] if len(errors) > 1 else None
        ghz, nodes = clock.ghz(), count_nodes(graph)
        costs.append(NetworkCost(network.spec.name, batch, name, ms, ghz, nodes, errors[0] or 0.0, mask_error))


def capture(call: Callable[[], object], repeats: int = 1) -> torch.cuda.CUDAGraph:
    """A graph of some calls in a row, on a stream of its own."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(repeats):
                call()
    graph.instantiate()
    torch.cuda.synchronize()
    return graph


def time_graph(graph: torch.cuda.CUDAGraph, runs: int, prepare: Callable[[int], object] = lambda _: None) -> float:
    """Median milliseconds of a replay, on a stream of its own as the engine replays; the default one may be slower."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    events = [[_make_event() for _ in range(2)] for _ in range(runs)]
    with torch.cuda.stream(stream):
        for turn in range(-5, runs):
            prepare(turn)
            if turn >= 0:
                events[turn][0].record()
            graph.replay()
            if turn >= 0:
                events[turn][1].record()
    torch.cuda.synchronize()
    return float(statistics.median(begin.elapsed_time(end) for begin, end in events))


def _make_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _time_steps(network: RFDETR, batch: int, runs: int) -> Iterator[StepCost]:
    """Each launch of a fused pass by itself, many times over in a graph; those of the same shapes once."""
    forward = Forward(fold(network, torch.float16), batch)
    images = torch.randn(batch, 3, *network.spec.input_hw, device="cuda", dtype=torch.float16)
    forward(images)
    found: dict[Any, list[Any]] = {}
    with _recorded(forward) as launches:
        forward(images)
    names = {buffer.data_ptr(): name for name, buffer in forward._buffers.items()}
    bandwidth = next((each for name, each in _BANDWIDTH.items() if name in torch.cuda.get_device_name()), 1e12)
    for op, call, tensors, out in launches:
        key = (op, *((name, tuple(tensor.shape)) for name, tensor in tensors.items()))
        found.setdefault(key, [op, names.get(out.data_ptr(), op), call, tensors, 0])[-1] += 1
    for op, name, call, tensors, count in found.values():
        us = time_graph(capture(call, _REPEATS), runs) / _REPEATS * 1000
        moved = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
        flops = CHECKS[op].flops
        products = 0 if flops is None else flops(tensors)
        yield StepCost(
            network.spec.name, batch, name, op, count, us, moved / bandwidth * 1e6, products / _PRODUCTS * 1e6
        )


@contextmanager
def _recorded(forward: Forward) -> Iterator[list[Any]]:
    """The launches of a pass: op, the launch as a function, its tensors by name, and what it writes."""
    launches: list[Any] = []
    run = forward._run

    def record(op: str, *args: Any, **given: Any) -> None:
        run(op, *args, **given)
        names = inspect.signature(OPS[op].variants["reference"].run).parameters
        tensors = dict(zip(names, args, strict=False)) | given
        tensors = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
        out = given.get("out", args[-1])
        launches.append((op, lambda: run(op, *args, **given), tensors, out))

    forward._run = record  # type: ignore[method-assign]
    try:
        yield launches
    finally:
        del forward._run


def _time_first_frames(name: str, runtimes: Sequence[str]) -> Iterator[FirstFrame]:
    for runtime in runtimes:
        with TemporaryDirectory() as folder:
            environment = os.environ | {"TRITON_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
            for cache in ("cold", "warm"):
                code = f"from benchmarks.network import print_first_frame; print_first_frame({name!r}, {runtime!r})"
                done = subprocess.run(
                    [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
                )
                yield FirstFrame(name, runtime, cache, float(done.stdout.split()[-1]))


def print_first_frame(name: str, runtime: str) -> None:
    """Print how many seconds pass until a network with random weights has seen its first frame."""
    network = RFDETR(SPECS[name]).eval().requires_grad_(requires_grad=False)
    randomise(network.state_dict())
    frame = sample(0).image
    torch.zeros(1, device="cuda")  # the context, which is not the network's
    begin = time.perf_counter()
    with Model(network, EngineConfig(device="cuda", runtime=_NAMES[runtime])) as model:
        model.predict(frame)
        print(time.perf_counter() - begin)


def main(
    out: ReportOption = None,
    size: Annotated[list[str] | None, typer.Option(help="A network; may be repeated.  [default: all ten]")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Images per pass; may be repeated.  [default: 1]")] = None,
    only: OnlyOption = None,
    runs: Annotated[int, typer.Option(help="Timed replays of each.")] = 40,
    first: Annotated[bool, typer.Option("--first", help="Time the first frame, too.")] = False,
    steps: Annotated[bool, typer.Option("--steps", help="Time the launches of fused passes one by one.")] = False,
) -> None:
    """Time the network alone as a CUDA graph: fused, compiled by PyTorch and uncompiled."""
    sizes, batches = size or [*SPECS], batch or [1]
    with progress("measuring", len(sizes) * len(batches)) as advance:
        found = run(
            out,
            sizes=sizes,
            batches=batches,
            only=only or RUNTIMES,
            runs=runs,
            has_steps=steps,
            has_first_frames=first,
            on_progress=advance,
        )
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
