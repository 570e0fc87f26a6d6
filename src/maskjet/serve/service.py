"""The state of one service: queues, threads, memory budget, and whether it is live and ready."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from maskjet.checks import shown
from maskjet.errors import MaskjetError, first_line, suggest
from maskjet.host import process
from maskjet.serve import problems
from maskjet.serve.dispatcher import PERMITS, Dispatcher
from maskjet.serve.metrics import Metrics
from maskjet.serve.settings import Settings

if TYPE_CHECKING:
    from maskjet.model import Model
    from maskjet.serve.other_workers import OtherWorkers
    from maskjet.sources.decoding import Decoding
    from maskjet.sources.nvjpeg import JPEGDecoder

LARGE = 2**21
"""Most pixels of an image that is decoded and encoded beside others; larger ones have threads of their own."""
_WORKING = 12  # most bytes a pixel beside the image itself: a progressive JPEG 8, an RGBA TIFF 11, a picture drawn 9
_END_S = 5.0  # time for model threads to end, and for decoding threads
_FREED_S = 60.0  # interval of returning freed memory to the system
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Memory:
    """Budget in bytes for all request bodies and decoded images."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0
        self.lock = threading.Lock()
        self._working, self._has_room = 0, threading.Condition()

    @contextmanager
    def working(self, pixels: int) -> Iterator[None]:
        """Wait for room to decode or encode a large image; such work together has `most` bytes, or is alone."""
        count = _WORKING * pixels
        with self._has_room:
            self._has_room.wait_for(lambda: not self._working or self._working + count <= self.most)
            self._working += count
        try:
            yield
        finally:
            with self._has_room:
                self._working -= count
                self._has_room.notify_all()

    def reserve(self, held: int = 0) -> Reservation:
        """Create an empty reservation; `held` bytes of another one count towards the request's limit."""
        return Reservation(self, held)


class Reservation:
    """Bytes reserved for one request, released when its context ends; any thread may take more until then."""

    def __init__(self, memory: Memory, held: int) -> None:
        self._memory, self._held = memory, held
        self._is_released = False
        self.taken = 0
        """Bytes taken."""

    def take(self, count: int) -> None:
        """Take bytes; raises ProblemError 413 above the limit, 429 if others hold too many, or GoneError."""
        memory, needed = self._memory, self._held + self.taken + count
        if needed > memory.most:
            raise problems.too_large(f"The request needs {needed:,} bytes of memory, the limit is {memory.most:,}.")
        with memory.lock:
            if self._is_released:
                raise problems.GoneError
            if memory.taken + count > memory.most:
                raise problems.busy("The memory for images is taken by other requests; try again later.")
            memory.taken += count
            self.taken += count

    def release(self, count: int) -> None:
        """Release some of the bytes early."""
        with self._memory.lock:
            if not self._is_released:
                self._memory.taken -= count
                self.taken -= count

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        with self._memory.lock:
            self._is_released = True
            self._memory.taken -= self.taken
            self.taken = 0


def _choose_jpeg_decoder(decoding: Decoding) -> tuple[str, JPEGDecoder | None]:
    """Choose the JPEG decoder: description, and GPU decoder or None; raises if the GPU was required."""
    if decoding.device == "cpu":
        return "cpu", None
    try:
        return decoding.device, decoding.jpeg_decoder()
    except MaskjetError as error:
        if not decoding.is_automatic:
            raise
        return f"cpu ({first_line(error)})", None


class Service:
    """State shared by all routes: `app.state.service`, see `create_app`."""

    def __init__(
        self, models: Mapping[str, Model], settings: Settings, other_workers: OtherWorkers | None = None
    ) -> None:
        self.settings = settings
        self.memory = Memory(settings.memory_bytes)
        self.is_draining = False
        """Whether the service is shutting down, and so no longer ready."""
        self.other_workers = other_workers
        """The worker processes of a service of several, this one among them."""
        self.is_closed = False
        """Whether new requests are refused: a moment after `is_draining`."""
        self.ending = asyncio.Event()
        """Set when WebSockets and sources must end."""
        self.streams: set[asyncio.Task[None]] = set()
        """Tasks of the open WebSockets."""
        self.failure: str | None = None
        """Why the service is not live; None while it is."""
        self.error: Exception | None = None
        """The error behind `failure`."""
        self.has_hung = False
        """Whether a thread decoded or encoded for too long at the end; Python would wait for it before it exits."""
        threads = settings.threads or min(8, max(2, os.cpu_count() or 2))
        self._pool = ThreadPoolExecutor(threads + PERMITS * len(models), thread_name_prefix="maskjet-work")
        self._large = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="maskjet-large")
        self.jpegs, self.jpeg_decoder = _choose_jpeg_decoder(next(iter(models.values())).decoding())
        self.dispatchers = {
            name: Dispatcher(
                name,
                model,
                self._pool,
                self,
                queue=settings.queue,
                batch=settings.batch,
                large=self._large,
                jpegs=self.jpeg_decoder,
            )
            for name, model in models.items()
        }
        self.metrics = Metrics(self.dispatchers, lambda: self.is_ready)
        self._warming = set(self.dispatchers)
        self.warmed_up, self.broken = asyncio.Event(), asyncio.Event()
        """Set once each model has answered frames or failed, and once a device has failed."""

    @property
    def is_warm(self) -> bool:
        """Whether each model has answered frames."""
        return not self._warming

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered at once."""
        are_others = self.other_workers is None or self.other_workers.are_ready
        return self.is_warm and are_others and not self.is_draining and self.failure is None

    def dispatcher(self, name: str | None = None) -> Dispatcher:
        """Dispatcher of a model, None for the first; raises ProblemError 404 without it, 503 after a failure."""
        if self.failure is not None:
            raise problems.unavailable(self.failure)
        if name is None:
            return next(iter(self.dispatchers.values()))
        if name not in self.dispatchers:
            detail = f"model must be one that is served, got {shown(name)}{suggest(name, self.dispatchers)}"
            raise problems.ProblemError(404, "no-such-model", detail)
        return self.dispatchers[name]

    async def in_thread(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run a function in the pool for decoding, drawing and encoding; skipped if cancelled in time."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    async def on_pixels(self, size_hw: tuple[int, int], function: Callable[..., _R], *args: object) -> _R:
        """Run a function on an image as `in_thread` does, on a large one in the pool for these."""
        pixels = math.prod(size_hw)
        if pixels <= LARGE:
            return await self.in_thread(function, *args)

        def work() -> _R:
            with self.memory.working(pixels):
                return function(*args)

        return await asyncio.get_running_loop().run_in_executor(self._large, work)

    def start(self) -> None:
        """Start the dispatchers, which warm up first; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        for dispatcher in self.dispatchers.values():
            dispatcher.start()
        self._watching = asyncio.ensure_future(self._return_memory())

    async def _return_memory(self) -> None:
        while True:
            await asyncio.sleep(_FREED_S)
            await asyncio.to_thread(process.return_freed_memory)

    async def end_streams(self) -> None:
        """Close the WebSockets after the frames in flight, within `Settings.drain_s`."""
        self.ending.set()
        if self.streams:
            await asyncio.wait(self.streams, timeout=self.settings.drain_s)

    async def aclose(self) -> None:
        """End the dispatchers and threads within a bounded time."""
        self.is_draining = self.is_closed = True
        self.ending.set()
        self._watching.cancel()
        closings = (asyncio.to_thread(dispatcher.close, _END_S) for dispatcher in self.dispatchers.values())
        await asyncio.gather(*closings)
        ending = threading.Thread(target=self._end_threads, daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, _END_S)
        self.has_hung = ending.is_alive()

    def _end_threads(self) -> None:
        for pool in (self._pool, self._large):
            pool.shutdown(cancel_futures=True)

    def warm(self, model: str) -> None:
        """A model has answered its first frames; see `dispatcher.Observer`."""
        self._warming.discard(model)
        if self.is_warm:
            self._set(self.warmed_up)

    def batch_done(self, model: str, images: int, queue_s: Sequence[float], predict_s: float) -> None:
        """Record a batch's measurements; see `dispatcher.Observer`."""
        self.metrics.batch_images.labels(model).observe(images)
        self.metrics.stage_seconds.labels("predict").observe(predict_s)
        for seconds in queue_s:
            self.metrics.stage_seconds.labels("queue").observe(seconds)

    def failed(self, error: Exception) -> None:
        """A model can't be used any more; see `dispatcher.Observer`."""
        self.failure, self.error = self.failure or str(error), self.error or error
        self._set(self.broken)
        self._set(self.warmed_up)

    def _set(self, event: asyncio.Event) -> None:
        """Set an event; from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(event.set)
