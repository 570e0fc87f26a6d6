"""The state of one service: its models' queues, its threads, its memory, and whether it is alive and ready."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from maskjet.errors import DeviceError, suggest
from maskjet.serve import problems
from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.settings import Settings

if TYPE_CHECKING:
    from maskjet.model import Model

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Memory:
    """Bytes that bodies and decoded images may take together; used in the event loop alone.

    Args:
        most: The limit.
    """

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0

    def take(self, count: int) -> None:
        """Take bytes.

        Raises:
            ProblemError: 429, so many are not free now; 413, they never are.
        """
        if count > self.most:
            raise problems.too_large(f"The request needs {count:,} bytes of memory, the limit is {self.most:,}.")
        if self.taken + count > self.most:
            raise problems.busy("The memory for images is taken by other requests; try again later.")
        self.taken += count

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Take bytes until the context ends; raises as `take`."""
        self.take(count)
        try:
            yield
        finally:
            self.taken -= count


class Service:
    """What the routes share; `app.state.service` of the application.

    Args:
        models: Loaded models by name, at least one; the first one serves requests that name none.
        settings: Limits.
    """

    def __init__(self, models: Mapping[str, Model], settings: Settings) -> None:
        self.settings = settings
        self.memory = Memory(settings.memory_bytes)
        self.is_warm = False
        """Whether each model has answered frames."""
        self.is_draining = False
        """Whether the service ends: new requests are refused."""
        self.failure: str | None = None
        """Why the service is not live; None while it is."""
        self.dispatchers = {
            name: Dispatcher(name, model, queue=settings.queue, batch=settings.batch, observer=self)
            for name, model in models.items()
        }
        threads = settings.threads or min(8, max(2, os.cpu_count() or 2))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="maskjet-work")

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered at once."""
        return self.is_warm and not self.is_draining and self.failure is None

    def dispatcher(self, name: str | None = None) -> Dispatcher:
        """The queue of the model of this name; of the first one for None.

        Raises:
            ProblemError: 404, there is no such model.
        """
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
        """Start the lanes."""
        for dispatcher in self.dispatchers.values():
            dispatcher.start()

    async def aclose(self) -> None:
        """End the lanes and threads, within a bounded time."""
        self.is_draining = True
        for dispatcher in self.dispatchers.values():
            await asyncio.to_thread(dispatcher.close)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def batch_done(self, model: str, images: int, queue_s: Sequence[float], predict_s: float) -> None:
        """Take note of a batch; see `dispatcher.Observer`."""

    def device_failed(self, error: DeviceError) -> None:
        """Take note that the device failed; see `dispatcher.Observer`."""
        self.failure = str(error)
