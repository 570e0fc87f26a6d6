"""The state of one service: its models' queues, its threads, its memory, and whether it is alive and ready."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from maskjet.errors import suggest
from maskjet.serve import problems
from maskjet.serve.dispatcher import LANES, Dispatcher
from maskjet.serve.metrics import Metrics
from maskjet.serve.settings import Settings

if TYPE_CHECKING:
    from maskjet.model import Model

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Memory:
    """Bytes that bodies and decoded images may take together.

    Args:
        most: The limit.
    """

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0
        self._lock = threading.Lock()

    def share(self, beside: int = 0) -> Share:
        """A share of nothing yet, for one request that has taken some bytes already, `beside`."""
        return Share(self, beside)

    def move(self, count: int) -> bool:
        """Take bytes, or give them back if below 0; returns False if so many are not free."""
        with self._lock:
            if count > 0 and self.taken + count > self.most:
                return False
            self.taken += count
            return True


class Share:
    """What one request has of the memory, until its context ends; threads may take more meanwhile."""

    def __init__(self, memory: Memory, beside: int) -> None:
        self._memory, self._beside = memory, beside
        self._lock = threading.Lock()
        self._is_over = False
        self.taken = 0
        """Bytes taken."""

    def take(self, count: int) -> None:
        """Take bytes.

        Raises:
            ProblemError: 429, so many are not free now; 413, they never are.
            GoneError: The context has ended.
        """
        needed = self._beside + self.taken + count
        if needed > self._memory.most:
            most = self._memory.most
            raise problems.too_large(f"The request needs {needed:,} bytes of memory, the limit is {most:,}.")
        with self._lock:
            if self._is_over:
                raise problems.GoneError
            if not self._memory.move(count):
                raise problems.busy("The memory for images is taken by other requests; try again later.")
            self.taken += count

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            self._memory.move(-self.taken)
            self.taken = 0


class Service:
    """What the routes share; `app.state.service` of the application.

    Args:
        models: Loaded models by name, at least one; the first one serves requests that name none.
        settings: Limits.
    """

    def __init__(self, models: Mapping[str, Model], settings: Settings) -> None:
        self.settings = settings
        self.memory = Memory(settings.memory_bytes)
        self.is_draining = False
        """Whether the service ends: it is not ready any more."""
        self.waits_for_others = False
        """Whether other processes of the service have not answered frames yet, since it began."""
        self.is_closed = False
        """Whether new requests are refused, a moment later."""
        self.ending = asyncio.Event()
        """Set when streams end, after the frames in flight."""
        self.streams: set[asyncio.Task[None]] = set()
        """Tasks of the WebSockets that are open."""
        self.failure: str | None = None
        """Why the service is not live; None while it is."""
        self.error: Exception | None = None
        """The error that was the reason."""
        threads = settings.threads or min(8, max(2, os.cpu_count() or 2))
        self._pool = ThreadPoolExecutor(threads + LANES * len(models), thread_name_prefix="maskjet-work")
        self.dispatchers = {
            name: Dispatcher(name, model, self._pool, queue=settings.queue, batch=settings.batch, observer=self)
            for name, model in models.items()
        }
        self.metrics = Metrics(self.dispatchers, lambda: self.is_ready)
        self._cold = set(self.dispatchers)
        self._changed: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def is_warm(self) -> bool:
        """Whether each model has answered frames."""
        return not self._cold

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered at once."""
        return self.is_warm and not self.waits_for_others and not self.is_draining and self.failure is None

    def dispatcher(self, name: str | None = None) -> Dispatcher:
        """The queue of the model of this name; of the first one for None.

        Raises:
            ProblemError: 404, there is no such model; 503, the service has failed.
        """
        if self.failure is not None:
            raise problems.unavailable(self.failure)
        if name is None:
            return next(iter(self.dispatchers.values()))
        if name not in self.dispatchers:
            raise problems.ProblemError(
                404, "no-such-model", f"model must be one that is served, got {name!r}{suggest(name, self.dispatchers)}"
            )
        return self.dispatchers[name]

    async def in_thread(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run a function in one of the threads for decoding, drawing and encoding; not run if cancelled before."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def start(self) -> None:
        """Start the lanes, which first answer frames of their own; called in the event loop."""
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        for dispatcher in self.dispatchers.values():
            dispatcher.start()
        self._watch = asyncio.ensure_future(self._watch_loop())

    async def _watch_loop(self) -> None:
        await self.warmed_up()  # what is compiled before holds the interpreter
        await self.metrics.watch_loop()

    async def warmed_up(self) -> None:
        """Wait until each model has answered frames, or has failed to."""
        while self._changed is not None and not self.is_warm and self.failure is None:
            await self._changed.wait()
            self._changed.clear()

    async def until_failure(self) -> None:
        """Wait until the device has failed."""
        while self._changed is not None and self.failure is None:
            await self._changed.wait()
            self._changed.clear()

    async def end_streams(self) -> None:
        """Close the WebSockets after the frames in flight, within `Settings.drain_s`."""
        self.ending.set()
        if self.streams:
            await asyncio.wait(self.streams, timeout=self.settings.drain_s)

    async def aclose(self) -> None:
        """End the lanes and threads, within a bounded time."""
        self.is_draining = self.is_closed = True
        self.ending.set()
        if self._watch is not None:
            self._watch.cancel()
        for dispatcher in self.dispatchers.values():
            await asyncio.to_thread(dispatcher.close)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def warm(self, model: str) -> None:
        """Take note that a model has answered frames; see `dispatcher.Observer`."""
        self._cold.discard(model)
        self._tell()

    def batch_done(self, model: str, images: int, queue_s: Sequence[float], predict_s: float) -> None:
        """Measure a batch; see `dispatcher.Observer`."""
        self.metrics.batch_images.labels(model).observe(images)
        self.metrics.stage_seconds.labels("predict").observe(predict_s)
        for seconds in queue_s:
            self.metrics.stage_seconds.labels("queue").observe(seconds)

    def failed(self, error: Exception) -> None:
        """Take note that a model can't be used any more; see `dispatcher.Observer`."""
        self.failure, self.error = self.failure or str(error), self.error or error
        self._tell()

    def _tell(self) -> None:
        if self._loop is not None and self._changed is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._changed.set)
