"""Slots: each runs one batch at a time, from frames to detections.

A `GraphSlot` captures everything from frames on the GPU to COCO RLE in page-locked memory as one CUDA graph, for frames
of any sizes. Per batch the host copies the frames into page-locked memory and from there to the GPU, writes a table of
where they lie and what they are, launches one graph, records one event and waits for it, and reads the result. It
allocates nothing on the device, and on the host only the detections. An `EagerSlot` runs the same steps one by one, on
any device.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from maskjet.detections import Detections
from maskjet.engine.copying import Copier
from maskjet.engine.isolation import isolated
from maskjet.engine.steps import WIDTH, Place, PostprocessBuffers, Steps, Work, WorkOptions
from maskjet.engine.upload import Upload
from maskjet.errors import first_line
from maskjet.host import process
from maskjet.ops.frame_table import DeviceFrames
from maskjet.ops.gpu import capturing, compiling_ahead, on_device
from maskjet.ops.memory import Scratch, pin
from maskjet.ops.preprocess.yuv import YUVFrames
from maskjet.postprocessing import Postprocessing
from maskjet.sources.picture import Picture

_PATIENCE_S = 30.0  # longest wait for a batch, which takes milliseconds
_EAGER_PATIENCE_S = 60.0  # longest wait for a batch that another thread is working on
_POLL_S = 20e-6  # sleep between polls; 80 µs with the kernel's delay, so a wait ends 25 µs late on average
_SURE = 0.95  # share of the expected time to sleep through before polling
_EARLY_S = 1e-3  # time before the expected end at which busy polling begins; a later wake-up costs 30 to 90 µs
_BUSY_S = 1.5e-3  # longest busy polling
_MOST_GRAPHS = 128  # per slot: RF-DETR needs one per batch size and layout, torchvision's detectors per input size, too
_CAPTURES = 3  # attempts: a device-wide synchronisation anywhere in the process aborts a capture

Pixels = torch.Tensor | Picture
"""A frame: uint8 [H, W, 3] RGB, or NV12."""


def _size_of(frame: Pixels) -> tuple[int, int]:
    """(height, width) of a frame, in pixels."""
    return frame.size_hw if isinstance(frame, Picture) else (frame.shape[0], frame.shape[1])


def _memory_of(frame: Pixels) -> torch.Tensor:
    """The bytes of a frame: uint8 [H, W, 3], or [H × 3 / 2, W] of NV12."""
    return frame.memory if isinstance(frame, Picture) else frame


def _is_near(memory: torch.Tensor) -> bool:
    """Whether kernels can read a frame in place: offsets within a row must fit into 32 bits."""
    if memory.is_contiguous() and memory.nbytes < 2**31:
        return True
    within = sum((size - 1) * abs(stride) for size, stride in zip(memory.shape[1:], memory.stride()[1:], strict=True))
    return max(within, abs(memory.stride(0))) < 2**31


@lru_cache(maxsize=64)
def _numbers_of(conversion: torch.Tensor) -> tuple[int, ...]:
    """A frame's NV12-to-RGB coefficients (`yuv_conversion`) as a tuple, for its table row."""
    return tuple(conversion.flatten().tolist())


class EagerSlot:
    """Runs a batch eagerly, in `result`; `submit` neither pads nor copies it. Otherwise as `GraphSlot`."""

    def __init__(self, steps: Steps) -> None:
        self.postprocessing = steps.postprocessing
        self._steps, self._scratch = steps, Scratch(steps.device)
        self._postprocess: PostprocessBuffers | None = None
        self._work: Work | None = None  # buffers of the last batch
        self._images: Sequence[Pixels] = ()
        self._is_working = threading.Lock()

    def submit(self, images: Sequence[Pixels], batch: int, *, all_cores: bool = False) -> None:  # noqa: ARG002
        """Take a batch."""
        self._images = images

    @isolated()
    def result(self) -> list[Detections]:
        """Run the batch; returns the detections of each image."""
        steps, images = self._steps, self._images
        with self._is_working, on_device(steps.device):
            self._postprocess = _update(self._postprocess, steps, self.postprocessing)
            sizes = [_size_of(image) for image in images]
            input_hw, work = steps.input_hw(sizes[0]), self._work
            described = [steps.describe(size_hw) for size_hw in sizes]
            if work is None or (work.batch, work.input_hw) != (len(images), input_hw) or not work.fits(sizes):
                width = max(WIDTH, *(width for _, width in sizes))
                options = WorkOptions(len(images), input_hw, self._postprocess, self._scratch, width)
                work = self._work = steps.work(options)
            for number, (size_hw, (packed, place)) in enumerate(zip(sizes, described, strict=True)):
                work.frames.put(number, packed, size_hw, place.canvas)
            work.frames.upload()
            work.run([_as_frame(image, steps.device) for image in images])
            return work.read(work.results.cpu().numpy(), len(images))

    def drain(self) -> None:
        """Wait, for a bounded time, while another thread runs `result`."""
        if self._is_working.acquire(timeout=_EAGER_PATIENCE_S):
            self._is_working.release()


def _update(buffers: PostprocessBuffers | None, steps: Steps, postprocessing: Postprocessing) -> PostprocessBuffers:
    """Create a slot's buffers at its first batch; later upload thresholds and class map if they changed."""
    if buffers is None:
        return steps.postprocess_buffers(postprocessing)
    if buffers.current is not postprocessing:
        buffers.upload(postprocessing)
    return buffers


def _as_frame(image: Pixels, device: torch.device) -> torch.Tensor | YUVFrames:
    """A batch of one frame, on the device: uint8 [1, H, W, 3], or YUV."""
    memory = _memory_of(image).to(device, non_blocking=True)
    if isinstance(image, Picture):
        return YUVFrames(*image.planes(memory), image.conversion.to(device))
    return memory[None]


class FrameKind(NamedTuple):
    """The kind of batch that a graph is captured for."""

    batch: int
    """Frames that the network sees at once."""
    input_hw: tuple[int, int]
    """Size of the network's input, (height, width)."""
    is_nv12: bool
    """Whether the frames are NV12, not RGB."""

    def __str__(self) -> str:
        layout = "NV12" if self.is_nv12 else "RGB"
        return f"{self.batch} {layout} to {self.input_hw[1]} × {self.input_hw[0]}"


class FrameGraph:
    """The CUDA graph of one kind of batch; serves frames of any sizes and addresses.

    The first batch runs step by step and the second is captured. If the capture fails, the next two batches try again;
    after that the steps stay uncaptured, and the report says why.
    """

    def __init__(self, kind: FrameKind, work: Work, fallbacks: Counter[str]) -> None:
        self.kind, self.work = kind, work
        self._fallbacks = fallbacks
        self._graph: torch.cuda.CUDAGraph | None = None
        self._why_not_captured: str | None = None
        self._runs = 0
        self._input = DeviceFrames(work.frames, is_yuv=kind.is_nv12)
        self._downloaded = pin(work.results.shape)
        self.copied = self._downloaded.numpy()
        """uint8: the last batch's results on the host."""

    @property
    def is_captured(self) -> bool:
        """Whether the next batch is a replay."""
        return self._graph is not None

    def rehearse(self) -> None:
        """Run the steps inside `compiling_ahead`, which collects their kernels and compiles them in parallel."""
        with torch.cuda.stream(_uncaptured_stream(torch.cuda.current_stream().device)):  # see `_run_beside`
            self.work.run(self._input)

    def launch(self, take_pool: Callable[[], Any]) -> None:
        """Run the steps on the frames that the work's table describes, on the current stream.

        Args:
            take_pool: Returns the memory pool (`torch.cuda.graph_pool_handle`) to capture with; its graphs must never
                run at the same time.
        """
        self._runs += 1
        if self._graph is None and 2 <= self._runs < 2 + _CAPTURES:
            self._run_beside()  # creates the capturing thread's cuBLAS handles
            torch.cuda.current_stream().synchronize()
            try:
                self._graph = self._capture(take_pool())
            except RuntimeError as error:
                if self._runs == 1 + _CAPTURES:
                    self._why_not_captured = first_line(error.__context__ or error)
                    self._fallbacks["engine: steps that can't be captured"] += 1
        if self._graph is None:
            self._run_beside()
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

    def _run_beside(self) -> None:
        """Run the steps uncaptured, on a stream where nothing is captured.

        cuBLAS keeps a workspace per stream from the first product on. So a capture takes one from the graph's pool; any
        other PyTorch may free before it captures graphs of its own, as for torch.compile(mode="reduce-overhead").
        """
        current = torch.cuda.current_stream()
        beside = _uncaptured_stream(current.device)
        beside.wait_stream(current)
        with torch.cuda.stream(beside):  # a stream object itself is a context for one thread only
            self._run()
        current.wait_stream(beside)

    def _run(self) -> None:
        self.work.frames.upload()
        self.work.run(self._input)
        self._downloaded.copy_(self.work.results, non_blocking=True)

    def __str__(self) -> str:
        if self._why_not_captured is not None:
            return f"step by step: it can't be captured, {self._why_not_captured}"
        if self._graph is None:
            return "step by step so far; captured with the second batch"
        return f"1 launch per batch: {count_nodes(self._graph)}"


@cache
def _uncaptured_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def count_nodes(graph: torch.cuda.CUDAGraph) -> str:
    """Count the kernels and copies that a graph launches, as text; it must have been made with `keep_graph`."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return "a graph, whose nodes are not counted: no cuda-bindings"
    _, _, count = runtime.cudaGraphGetNodes(graph.raw_cuda_graph())
    _, nodes, _ = runtime.cudaGraphGetNodes(graph.raw_cuda_graph(), count)
    kinds = [runtime.cudaGraphNodeGetType(node)[1] for node in nodes[:count]]
    kernels = sum(kind == runtime.cudaGraphNodeType.cudaGraphNodeTypeKernel for kind in kinds)
    return f"{kernels} kernels, {count - kernels} copies and fills"


class _Running(NamedTuple):
    """A batch in flight."""

    graph: FrameGraph
    frames: Sequence[torch.Tensor]
    """uint8 frames, kept alive until the batch is done: those on the GPU are read in place."""
    expected: tuple[FrameKind, int]
    """Key of the expected duration: kind of batch, and total pixels rounded to a power of two."""


class GraphSlot:
    """Runs one batch at a time as a CUDA graph, on a stream of its own; caches the latest graphs."""

    def __init__(self, steps: Steps, copier: Copier) -> None:
        self.postprocessing = steps.postprocessing
        """Thresholds, classes and limit of the next batches; set while the slot is idle, uploaded if changed."""
        self._steps, self._upload = steps, Upload(steps.device, copier)
        self._scratch = Scratch(steps.device)
        self._postprocess: PostprocessBuffers | None = None  # made by the first batch, whose error names its frame
        self._stream = torch.cuda.Stream(steps.device)  # type: ignore[no-untyped-call]
        self._downloaded = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pool: Any = None  # the graphs' shared memory pool
        self._graphs: OrderedDict[FrameKind, FrameGraph] = OrderedDict()
        self._running: _Running | None = None
        self._expected_s: dict[tuple[FrameKind, int], float] = {}  # launch to end, with batches queued ahead
        self._launched_s = 0.0
        self._all_cores = False

    @property
    def graphs(self) -> Sequence[FrameGraph]:
        """The graphs kept, least recently used first."""
        return tuple(self._graphs.values())

    @property
    def nbytes(self) -> int:
        """GPU memory for frames and intermediate results, shared by the graphs, in bytes."""
        return self._upload.nbytes + self._scratch.nbytes

    def prepare(self, batch: int) -> None:
        """Compile the kernels for a batch size, RGB and NV12."""
        steps = self._steps
        with isolated(), on_device(steps.device), self._stream:
            postprocess = _update(None, steps, self.postprocessing)
            for is_nv12 in (False, True):
                self._new_graph(FrameKind(batch, steps.input_hw((1, 1)), is_nv12), postprocess, WIDTH)
            self._stream.synchronize()

    def submit(self, images: Sequence[Pixels], batch: int, *, all_cores: bool = False) -> None:
        """Copy the frames and launch the graph; returns before the batch is done.

        Args:
            images: The frames, of one layout and with inputs of one size (`Steps.input_hw`), at least one. They may be
                overwritten on return, unless they are on a GPU.
            batch: Batch size of the network, at least the number of images.
            all_cores: Whether copying may use all cores and waiting may keep one busy: nothing is being decoded.
        """
        if self._running is not None:
            self.drain()  # the last batch's result was never read
            self._running = None
        steps, sizes = self._steps, [_size_of(image) for image in images]
        kind = FrameKind(batch, steps.input_hw(sizes[0]), isinstance(images[0], Picture))
        memory = [_memory_of(image) for image in images]
        for device in {frame.device for frame in memory if frame.is_cuda}:
            self._stream.wait_stream(torch.cuda.current_stream(device))  # the caller may still be writing these frames
        with isolated(), on_device(steps.device), self._stream:
            memory = [self._settle(frame) for frame in memory]
            # Raises if a frame is too large, before anything is launched.
            described = [self._describe(image, frame) for image, frame in zip(images, memory, strict=True)]
            # Ordered on the stream: the last batch is done, and this one comes after the upload.
            self._postprocess = _update(self._postprocess, steps, self.postprocessing)
            graph = self._graph_for(kind, sizes, self._postprocess)
            table = graph.work.frames
            addresses = self._bring(memory, all_cores=all_cores)
            for number, (address, (packed, place, luma, chroma)) in enumerate(zip(addresses, described, strict=True)):
                table.put(number, packed, sizes[number], place.canvas, address + luma, chroma and address + chroma)
            table.fill(len(images))
            graph.launch(self._take_pool)
            self._downloaded.record(self._stream)
        self._launched_s = time.monotonic()
        self._all_cores = all_cores
        pixels = sum(height * width for height, width in sizes)
        self._running = _Running(graph, memory, (kind, pixels.bit_length()))

    def _settle(self, frame: torch.Tensor) -> torch.Tensor:
        """Move a frame on a GPU to the slot's GPU; copy it if offsets within a row exceed 32 bits."""
        if not frame.is_cuda:
            return frame
        here = frame if frame.device == self._steps.device else frame.to(self._steps.device, non_blocking=True)
        return here if _is_near(here) else here.contiguous()

    def _bring(self, frames: Sequence[torch.Tensor], *, all_cores: bool) -> list[int]:
        """Upload the frames on the host; returns each frame's address on the GPU."""
        on_host = [frame for frame in frames if not frame.is_cuda]
        uploaded = iter(self._upload.bring(on_host, all_cores=all_cores) if on_host else ())
        return [frame.data_ptr() if frame.is_cuda else next(uploaded) for frame in frames]

    def _describe(self, image: Pixels, memory: torch.Tensor) -> tuple[bytes, Place, int, int]:
        """A frame's packed table row, its place, and byte offsets of its pixels or luma and of its chroma (RGB: 0)."""
        size_hw = _size_of(image)
        if isinstance(image, Picture):
            (rows, width), (top, left, _, _) = memory.shape, image.area
            row, across = memory.stride() if memory.is_cuda else (width, 1)
            luma, chroma = (above * row + left * across for above in (top, rows // 3 * 2 + top // 2))
            numbers = (row, 2 * across, across, *_numbers_of(image.conversion))
            return *self._steps.describe(size_hw, (row, across, 0), numbers), luma, chroma
        strides = memory.stride() if memory.is_cuda else (3 * size_hw[1], 3, 1)
        return *self._steps.describe(size_hw, strides), 0, 0

    def _graph_for(
        self, kind: FrameKind, sizes: Sequence[tuple[int, int]], postprocess: PostprocessBuffers
    ) -> FrameGraph:
        """Get or make the graph of a kind of batch, and mark it as the most recently used.

        Frames so large that a graph has no room for them get steps of their own, which are not kept.
        """
        graph = self._graphs.get(kind)
        if graph is None:
            if len(self._graphs) >= _MOST_GRAPHS:
                self._graphs.popitem(last=False)
            graph = self._graphs[kind] = self._new_graph(kind, postprocess, WIDTH)
        self._graphs.move_to_end(kind)
        if graph.work.fits(sizes):
            return graph
        self._steps.fallbacks["engine: a batch of frames too large for a graph"] += 1
        return self._new_graph(kind, postprocess, max(width for _, width in sizes))

    def _new_graph(self, kind: FrameKind, postprocess: PostprocessBuffers, width: int) -> FrameGraph:
        options = WorkOptions(kind.batch, kind.input_hw, postprocess, self._scratch, width)

        def make() -> FrameGraph:
            return FrameGraph(kind, self._steps.work(options), self._steps.fallbacks)

        if self._steps.can_rehearse:
            with suppress(Exception):  # errors recur, and are handled, at the ordinary compilation
                with compiling_ahead(self._steps.device):
                    graph = make()
                    graph.rehearse()
                return graph
        return make()

    def _take_pool(self) -> Any:
        """The memory pool for captures; a new one if no graph is left, since PyTorch has then freed the old one."""
        if not any(each.is_captured for each in self._graphs.values()):
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def result(self) -> list[Detections]:
        """Wait for the last batch; returns the detections of each image."""
        assert self._running is not None
        graph, frames, _ = self._running
        with self._steps.mark("wait"):
            self.drain()
        self._running = None
        return graph.work.read(graph.copied, len(frames))

    def replay(self) -> None:
        """Upload the last frames, relaunch their graph and wait: for timing the GPU alone."""
        graph = self.graphs[-1]
        with isolated(), on_device(self._steps.device), self._stream:
            self._upload.repeat()
            graph.launch(self._take_pool)
        self._stream.synchronize()

    def drain(self) -> None:
        """Wait, for a bounded time, for the last batch's event.

        Sleeps through most of the time that the last such batch took, then polls. While frames are being
        decoded it sleeps between polls, since each poll takes the interpreter lock from the decoding threads.
        """
        running = self._running
        if running is None:
            return
        deadline = time.monotonic() + _PATIENCE_S
        expected_s = self._expected_s.get(running.expected, 0.0)  # 0 until measured
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
        # Already finished: only an upper bound.
        self._expected_s[running.expected] = took if polls else 0.9 * min(took, expected_s)


Slot = EagerSlot | GraphSlot
"""Runs one batch at a time, from frames to detections."""
