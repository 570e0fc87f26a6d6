"""A slot: everything between a raw frame in pinned memory and its COCO RLE in pinned memory as one CUDA graph.

Per batch the host copies the frames into pinned memory, launches one graph, records one event and waits for it, and
reads the result. It allocates nothing, on the device or off it, but for what it returns.
"""

from __future__ import annotations

import math
import mmap
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from maskjet.detections import Detections
from maskjet.engine.steps import Steps
from maskjet.errors import first_line
from maskjet.ops.record import FALLBACKS

_PATIENCE_S = 30.0  # a batch takes milliseconds
_POLL_S = 20e-6  # with the kernel's own delay 80 µs: a wait ends 25 µs late on average
_capturing = threading.Lock()  # PyTorch captures one graph at a time


@dataclass(frozen=True)
class FrameKind:
    """What a graph is captured for."""

    batch: int
    """Frames that the network sees at once."""
    size_hw: tuple[int, int]
    """Of each frame."""
    is_on_device: bool
    """Whether they come in the GPU's memory, and nothing is uploaded."""

    def __str__(self) -> str:
        where = ", from GPU memory" if self.is_on_device else ""
        return f"{self.batch} × {self.size_hw[1]} × {self.size_hw[0]}{where}"


def pin(shape: Sequence[int]) -> torch.Tensor:
    """Page-locked host memory, uint8, that is freed with the tensor.

    PyTorch's own can't be freed when the GPU has failed: it records events then, and ends the process.
    """
    size = math.prod(shape)
    memory = mmap.mmap(-1, max(size, 1))
    values = np.frombuffer(memory, dtype=np.uint8, count=size)
    address, runtime = values.ctypes.data, torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = int(runtime.cudaHostRegister(address, len(memory), 0))
    if error:
        raise RuntimeError(f"{len(memory)} bytes can't be page-locked: CUDA error {error}")
    weakref.finalize(memory, runtime.cudaHostUnregister, address)
    return torch.from_numpy(values).view(*shape)


class FrameGraph:
    """The buffers of one kind of batch, and the graph that works on them.

    The first batch runs step by step; with the second one the steps are captured. So sizes that are seen once cost no
    capture. Steps that can't be captured go on one by one, and the report says why.

    Args:
        steps: What to run.
        kind: Of the batches.
    """

    def __init__(self, steps: Steps, kind: FrameKind) -> None:
        self.kind = kind
        self._steps = steps
        self._graph: torch.cuda.CUDAGraph | None = None
        self._why_not_captured: str | None = None
        self._runs = 0
        self._frames = torch.empty(kind.batch, *kind.size_hw, 3, dtype=torch.uint8, device=steps.device)
        self._uploaded = None if kind.is_on_device else pin(self._frames.shape)
        self._rows = (self._frames if self._uploaded is None else self._uploaded).unbind()
        self._work = steps.work(kind.batch, kind.size_hw)
        self._downloaded = pin(self._work.results.shape)

    @property
    def is_captured(self) -> bool:
        """Whether the next batch is a replay."""
        return self._graph is not None

    def fill(self, images: Sequence[torch.Tensor], *, all_cores: bool) -> None:
        """Copy frames to where the steps read them; those on a GPU on the current stream."""
        self._steps.copier.copy(self._rows, images, all_cores=all_cores)

    def launch(self, pool: Any) -> None:
        """Work on what is there, on the current stream.

        Args:
            pool: Of memory (`torch.cuda.graph_pool_handle`), shared with graphs that never run at the same time.
        """
        self._runs += 1
        if self._runs == 2:
            self._run()  # in the thread that captures, which needs cuBLAS handles of its own beforehand
            torch.cuda.current_stream().synchronize()
            try:
                self._graph = self._capture(pool)
            except RuntimeError as error:
                self._why_not_captured = first_line(error.__context__ or error)
                FALLBACKS["engine: steps that can't be captured"] += 1
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def _capture(self, pool: Any) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with _capturing:
            # Other threads may go on using the GPU meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._run()
            finally:
                graph.capture_end()
        graph.instantiate()
        return graph

    def _run(self) -> None:
        if self._uploaded is not None:
            self._frames.copy_(self._uploaded, non_blocking=True)
        self._work.run(self._frames)
        self._downloaded.copy_(self._work.results, non_blocking=True)

    def read(self, images: int) -> list[Detections]:
        """The detections of the first images of the batch, which must be done; copied."""
        return self._work.read(self._downloaded.numpy(), images)

    def __str__(self) -> str:
        if self._why_not_captured is not None:
            return f"step by step: it can't be captured, {self._why_not_captured}"
        if self._graph is None:
            return "step by step so far; captured with the second batch"
        return f"1 launch per batch: {_count_nodes(self._graph)}"


def _count_nodes(graph: torch.cuda.CUDAGraph) -> str:
    try:
        from cuda.bindings import runtime
    except ImportError:
        return "a graph, whose nodes are not counted: no cuda-bindings"
    _, _, count = runtime.cudaGraphGetNodes(graph.raw_cuda_graph())
    _, nodes, _ = runtime.cudaGraphGetNodes(graph.raw_cuda_graph(), count)
    kinds = [runtime.cudaGraphNodeGetType(node)[1] for node in nodes[:count]]
    kernels = sum(kind == runtime.cudaGraphNodeType.cudaGraphNodeTypeKernel for kind in kinds)
    return f"{kernels} kernels, {count - kernels} copies and fills"


class GraphSlot:
    """Runs batches on a stream of its own, one at a time; graphs are kept for the kinds of batches seen last.

    Args:
        steps: What to run; all of it on the GPU, by Triton.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._stream = torch.cuda.Stream(steps.device)  # type: ignore[no-untyped-call]
        self._downloaded = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: OrderedDict[FrameKind, FrameGraph] = OrderedDict()
        self._running: tuple[FrameGraph, int] | None = None

    @property
    def graphs(self) -> Sequence[FrameGraph]:
        """Those kept, the one used last at the end."""
        return tuple(self._graphs.values())

    @torch.inference_mode()
    def submit(self, images: Sequence[torch.Tensor], batch: int, *, all_cores: bool = False) -> None:
        """Copy a batch and launch its graph; see `Slot`."""
        self.drain()
        self._running = None
        first = images[0]
        kind = FrameKind(batch, (first.shape[0], first.shape[1]), first.is_cuda)
        if first.is_cuda:
            self._stream.wait_stream(torch.cuda.current_stream(first.device))
        with torch.cuda.stream(self._stream):
            graph = self._graph_for(kind)
            graph.fill(images, all_cores=all_cores)
            graph.launch(self._pool)
            self._downloaded.record()
        self._running = (graph, len(images))

    def _graph_for(self, kind: FrameKind) -> FrameGraph:
        graph = self._graphs.pop(kind, None)
        if graph is None:
            if len(self._graphs) >= self._steps.config.graphs:
                self._graphs.popitem(last=False)
            graph = FrameGraph(self._steps, kind)
        self._graphs[kind] = graph
        return graph

    @torch.inference_mode()
    def result(self) -> list[Detections]:
        """Wait for the batch and read it; see `Slot`."""
        assert self._running is not None
        graph, images = self._running
        with self._steps.mark("wait"):
            self.drain()
        self._running = None
        with torch.cuda.stream(self._stream):  # for what did not fit
            return graph.read(images)

    def replay(self) -> None:
        """Launch the graph used last on what it has, and wait for it: what the GPU takes, and one launch."""
        graph = self.graphs[-1]
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            graph.launch(self._pool)
        self._stream.synchronize()

    def drain(self) -> None:
        """Wait for the event of the last batch; see `Slot`."""
        if self._running is None:
            return
        deadline = time.monotonic() + _PATIENCE_S
        while not self._downloaded.query():  # type: ignore[no-untyped-call]
            if time.monotonic() > deadline:
                raise RuntimeError(f"the GPU did not answer within {_PATIENCE_S:.0f} s")
            time.sleep(_POLL_S)
