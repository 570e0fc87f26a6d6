"""Slots: each takes one batch at a time from frames to detections.

A `GraphSlot` captures everything from frames to COCO RLE, both in page-locked memory, as one CUDA graph. Per batch the
host copies the frames into page-locked memory, launches one graph, records one event and waits for it, and reads the
result. It allocates nothing on the device, and on the host only the detections. An `EagerSlot` runs the same steps one
by one, on any device.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from maskjet import process
from maskjet.calls import Postprocessing
from maskjet.detections import Detections
from maskjet.engine.copying import Copier, Rows
from maskjet.engine.isolation import isolated
from maskjet.engine.steps import PostprocessBuffers, Steps, Work
from maskjet.errors import first_line
from maskjet.media.picture import Picture
from maskjet.ops.gpu import capturing, on_device
from maskjet.ops.preprocess.yuv import YUVFrames

_PATIENCE_S = 30.0  # longest wait for a batch, which takes milliseconds
_EAGER_PATIENCE_S = 60.0  # longest wait for a batch that another thread is working on
_POLL_S = 20e-6  # sleep between polls; 80 µs with the kernel's delay, so a wait ends 25 µs late on average
_SURE = 0.95  # share of the expected time to sleep through before polling
_EARLY_S = 1e-3  # time before the expected end at which busy polling begins; a later wake-up costs 30 to 90 µs
_BUSY_S = 1.5e-3  # longest busy polling
_CAPTURES = 3  # tries: any wait for the whole GPU, elsewhere in the process, ends a capture

Pixels = torch.Tensor | Picture
"""A frame: uint8 [H, W, 3] RGB, or NV12."""


def _size_of(frame: Pixels) -> tuple[int, int]:
    """(height, width) of a frame, in pixels."""
    return frame.size_hw if isinstance(frame, Picture) else (frame.shape[0], frame.shape[1])


def _memory_of(frame: Pixels) -> torch.Tensor:
    """The bytes of a frame: uint8 [H, W, 3], or [H × 3 / 2, W] of NV12."""
    return frame.memory if isinstance(frame, Picture) else frame


class Slot(Protocol):
    """Takes one batch at a time from frames to detections."""

    postprocessing: Postprocessing
    """Thresholds, classes and limit of the next batches; set while the slot is idle, uploaded if changed."""

    def submit(self, images: Sequence[Pixels], batch: int, *, all_cores: bool = False) -> None:
        """Start a batch; returns before it is done.

        Args:
            images: The frames, all of one size, device and layout, at least one. They may be overwritten on return,
                unless they are on a GPU or the slot is an `EagerSlot`.
            batch: Batch size of the network, at least the number of images.
            all_cores: Whether copying may use all cores and waiting may keep one busy: nothing is being decoded.
        """

    def result(self) -> list[Detections]:
        """Wait for the last batch; returns the detections of each image."""

    def drain(self) -> None:
        """Wait, a bounded time, until the slot is idle."""


class EagerSlot:
    """Runs a batch step by step in `result`; `submit` neither pads nor copies it.

    Args:
        steps: The network and its ops.
    """

    def __init__(self, steps: Steps) -> None:
        self.postprocessing = steps.postprocessing
        self._steps = steps
        self._postprocess: PostprocessBuffers | None = None
        self._work: Work | None = None  # for the last size of batch and frames
        self._images: Sequence[Pixels] = ()
        self._is_working = threading.Lock()

    def submit(self, images: Sequence[Pixels], batch: int, *, all_cores: bool = False) -> None:  # noqa: ARG002
        """Take a batch; see `Slot`."""
        self._images = images

    @isolated()
    def result(self) -> list[Detections]:
        """Run the batch; see `Slot`."""
        with self._is_working, on_device(self._steps.device):
            images, work = self._images, self._work
            size_hw = _size_of(images[0])
            self._postprocess = _update(self._postprocess, self._steps, self.postprocessing)
            if work is None or (work.batch, work.size_hw) != (len(images), size_hw):
                work = self._work = self._steps.work(len(images), size_hw, self._postprocess)
            memory = [_memory_of(image) for image in images]
            frames = memory[0][None] if len(memory) == 1 else torch.stack(memory)
            frames = frames.to(self._steps.devices["preprocess"], non_blocking=True)
            work.run(_with_conversions(frames, images))
            return work.read(work.results.cpu().numpy(), len(images))

    def drain(self) -> None:
        """Wait for a result that another thread is waiting for; see `Slot`."""
        if self._is_working.acquire(timeout=_EAGER_PATIENCE_S):
            self._is_working.release()


def _update(buffers: PostprocessBuffers | None, steps: Steps, postprocessing: Postprocessing) -> PostprocessBuffers:
    """Make a slot's buffers at its first batch; upload other values than they hold."""
    if buffers is None:
        return steps.postprocess_buffers(postprocessing)
    if buffers.current is not postprocessing:
        buffers.upload(postprocessing)
    return buffers


def _with_conversions(frames: torch.Tensor, images: Sequence[Pixels]) -> torch.Tensor | YUVFrames:
    """Frames as the steps take them: RGB unchanged, NV12 with the numbers that convert it."""
    conversions = [image.conversion for image in images if isinstance(image, Picture)]
    if not conversions:
        return frames
    return YUVFrames.within(frames, torch.stack(conversions).to(frames.device))


class FrameKind(NamedTuple):
    """The kind of batch that a graph is captured for."""

    batch: int
    """Frames that the network sees at once."""
    size_hw: tuple[int, int]
    """Size of each frame, (height, width)."""
    is_on_device: bool
    """Whether the frames are in GPU memory already, so that nothing is uploaded."""
    is_nv12: bool = False
    """Whether the frames are NV12, not RGB."""

    def __str__(self) -> str:
        where = ", from GPU memory" if self.is_on_device else ""
        layout = ", NV12" if self.is_nv12 else ""
        return f"{self.batch} × {self.size_hw[1]} × {self.size_hw[0]}{layout}{where}"


def pin(shape: Sequence[int]) -> torch.Tensor:
    """Allocate page-locked host memory, uint8, that is freed with the tensor.

    PyTorch's own records events when it is freed, which ends the process after the GPU has failed.
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
    """The buffers of one kind of batch, and the CUDA graph of its steps.

    The first batch runs step by step and the second is captured, so a size that is seen once costs no capture. If the
    capture fails, the next two batches try again; after that the steps stay uncaptured, and the report says why.

    Args:
        steps: The network and its ops.
        kind: The kind of batch.
        postprocess: The slot's buffers, shared by its graphs.
    """

    def __init__(self, steps: Steps, kind: FrameKind, postprocess: PostprocessBuffers) -> None:
        self.kind = kind
        self.work = steps.work(kind.batch, kind.size_hw, postprocess)
        """The steps, with their buffers."""
        self._fallbacks = steps.fallbacks
        self._graph: torch.cuda.CUDAGraph | None = None
        self._why_not_captured: str | None = None
        self._runs = 0
        height, width = kind.size_hw
        shape = (height * 3 // 2, width) if kind.is_nv12 else (height, width, 3)
        self._frames = torch.empty(kind.batch, *shape, dtype=torch.uint8, device=steps.device)
        self._uploaded = None if kind.is_on_device else pin(self._frames.shape)
        self.rows = Rows(self._frames if self._uploaded is None else self._uploaded)
        """uint8 [H, W, 3], or [H × 3 / 2, W] of NV12, per frame: the memory that `launch` reads."""
        self._input: torch.Tensor | YUVFrames = self._frames
        if kind.is_nv12:
            self._conversions = torch.zeros(kind.batch, 4, 2, dtype=torch.int32, device=steps.device)
            self._input = YUVFrames.within(self._frames, self._conversions)
        self._converted_by: list[torch.Tensor | None] = [None] * kind.batch
        self._downloaded = pin(self.work.results.shape)
        self.copied = self._downloaded.numpy()
        """uint8: the last batch's results on the host."""
        self.expected_s = 0.0
        """Expected time from launch to end, in seconds, including batches ahead of it; too short until measured."""

    @property
    def is_captured(self) -> bool:
        """Whether the next batch is a replay."""
        return self._graph is not None

    def take_conversions(self, images: Sequence[Pixels]) -> None:
        """Upload the numbers that convert NV12 to RGB, on the current stream, for rows where they have changed."""
        if not self.kind.is_nv12:
            return
        for row, image in enumerate(images):
            if isinstance(image, Picture) and image.conversion is not self._converted_by[row]:
                self._conversions[row].copy_(image.conversion)
                self._converted_by[row] = image.conversion

    def launch(self, take_pool: Callable[[], Any]) -> None:
        """Run the steps on the frames in `rows`, on the current stream.

        Args:
            take_pool: Returns the memory pool (`torch.cuda.graph_pool_handle`) to capture with; its graphs must never
                run at the same time.
        """
        self._runs += 1
        if self._graph is None and 2 <= self._runs < 2 + _CAPTURES:
            self._run()  # the capturing thread needs its own cuBLAS handles beforehand
            torch.cuda.current_stream().synchronize()
            try:
                self._graph = self._capture(take_pool())
            except RuntimeError as error:
                if self._runs == 1 + _CAPTURES:
                    self._why_not_captured = first_line(error.__context__ or error)
                    self._fallbacks["engine: steps that can't be captured"] += 1
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def _capture(self, pool: Any) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with capturing, process.garbage_left():  # freeing page-locked memory would end the capture
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # other threads may use the GPU meanwhile
            try:
                self._run()
            finally:
                graph.capture_end()
        graph.instantiate()
        return graph

    def _run(self) -> None:
        if self._uploaded is not None:
            self._frames.copy_(self._uploaded, non_blocking=True)
        self.work.run(self._input)
        self._downloaded.copy_(self.work.results, non_blocking=True)

    def __str__(self) -> str:
        if self._why_not_captured is not None:
            return f"step by step: it can't be captured, {self._why_not_captured}"
        if self._graph is None:
            return "step by step so far; captured with the second batch"
        return f"1 launch per batch: {count_nodes(self._graph)}"


def count_nodes(graph: torch.cuda.CUDAGraph) -> str:
    """The numbers of kernels and copies that a graph launches; it must have been made with `keep_graph`."""
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
    """Runs batches as CUDA graphs on its own stream, one at a time; keeps the graphs used last.

    Args:
        steps: The network and its ops, all run by Triton on the GPU.
        copier: Copies images into the memory that graphs read.
    """

    def __init__(self, steps: Steps, copier: Copier) -> None:
        self.postprocessing = steps.postprocessing
        self._steps, self._copier = steps, copier
        self._postprocess: PostprocessBuffers | None = None  # made by the first batch, whose error names its frame
        self._stream = torch.cuda.Stream(steps.device)  # type: ignore[no-untyped-call]
        self._downloaded = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pool: Any = None  # the graphs' shared memory pool
        self._graphs: OrderedDict[FrameKind, FrameGraph] = OrderedDict()
        self._running: tuple[FrameGraph, int] | None = None
        self._launched_s = 0.0
        self._all_cores = False

    @property
    def graphs(self) -> Sequence[FrameGraph]:
        """The graphs kept, least recently used first."""
        return tuple(self._graphs.values())

    def submit(self, images: Sequence[Pixels], batch: int, *, all_cores: bool = False) -> None:
        """Copy the frames and launch the graph; see `Slot`."""
        if self._running is not None:
            self.drain()  # the last batch's result was never read
            self._running = None
        memory = [_memory_of(image) for image in images]
        kind = FrameKind(batch, _size_of(images[0]), memory[0].is_cuda, isinstance(images[0], Picture))
        if kind.is_on_device:
            self._stream.wait_stream(torch.cuda.current_stream(memory[0].device))
        with isolated(), on_device(self._steps.device), self._stream:
            # Ordered on the stream: the last batch is done, and this one comes after the upload.
            self._postprocess = _update(self._postprocess, self._steps, self.postprocessing)
            graph = self._graph_for(kind, self._postprocess)
            self._copier.copy(graph.rows, memory, all_cores=all_cores)
            graph.take_conversions(images)
            graph.launch(self._take_pool)
            self._downloaded.record(self._stream)
        self._launched_s = time.monotonic()
        self._all_cores = all_cores
        self._running = (graph, len(images))

    def _graph_for(self, kind: FrameKind, postprocess: PostprocessBuffers) -> FrameGraph:
        """Get or make the graph of a kind of batch, and mark it as the most recently used."""
        graph = self._graphs.get(kind)
        if graph is not None:
            self._graphs.move_to_end(kind)
            return graph
        if len(self._graphs) >= self._steps.config.graphs:
            self._graphs.popitem(last=False)
        graph = self._graphs[kind] = FrameGraph(self._steps, kind, postprocess)
        return graph

    def _take_pool(self) -> Any:
        """The memory pool to capture with; a new one if no graph is captured: PyTorch frees a pool with its last."""
        if not any(each.is_captured for each in self._graphs.values()):
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def result(self) -> list[Detections]:
        """Wait for the batch and read it; see `Slot`."""
        assert self._running is not None
        graph, images = self._running
        with self._steps.mark("wait"):
            self.drain()
        self._running = None
        return graph.work.read(graph.copied, images)

    def replay(self) -> None:
        """Launch the last graph again on the same frames, and wait for it: measures the GPU alone."""
        graph = self.graphs[-1]
        with isolated(), on_device(self._steps.device), self._stream:
            graph.launch(self._take_pool)
        self._stream.synchronize()

    def drain(self) -> None:
        """Wait for the event of the last batch; see `Slot`.

        Sleeps through most of the time that the last batch of this kind took, then polls. While frames are being
        decoded it sleeps between polls, since each poll takes the interpreter lock from the decoding threads.
        """
        running = self._running
        if running is None:
            return
        graph, _ = running
        deadline = time.monotonic() + _PATIENCE_S
        expected_s = graph.expected_s
        sure_s, busy_s = (expected_s - _EARLY_S, _BUSY_S) if self._all_cores else (_SURE * expected_s, 0.0)
        if (most_s := self._launched_s + sure_s - time.monotonic()) > 0:
            time.sleep(most_s)
        pause_from = time.monotonic() + busy_s
        polls = 0
        while not self._downloaded.query():  # type: ignore[no-untyped-call]
            now = time.monotonic()
            if now > deadline:
                raise RuntimeError(f"the GPU did not answer within {_PATIENCE_S:.0f} s")
            if now < pause_from:
                os.sched_yield()  # releases the interpreter lock to other threads
            else:
                time.sleep(_POLL_S)
            polls += 1
        took = time.monotonic() - self._launched_s
        graph.expected_s = took if polls else 0.9 * min(took, expected_s)  # already finished: only an upper bound
