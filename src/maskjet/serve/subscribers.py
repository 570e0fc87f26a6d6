"""Subscribers of a source: readers of its results, and viewers of its preview. None of them blocks the source."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from maskjet.drawing.showing import encode

if TYPE_CHECKING:
    from maskjet.detections import Detections
    from maskjet.media.frames import Frame
    from maskjet.serve.service import Service

EVENTS_WAITING = 64
"""Most results that wait for one subscriber."""
_T = TypeVar("_T")
_log = logging.getLogger("maskjet.serve")


class Latest(Generic[_T]):
    """A value that is replaced by newer ones; slow readers skip some. In the event loop alone."""

    def __init__(self) -> None:
        self._number = 0
        self._value: _T | None = None
        self._is_over = False
        self._changed = asyncio.Event()

    def put(self, value: _T) -> None:
        """Replace the value."""
        self._value = value
        self._number += 1
        self._wake()

    def finish(self) -> None:
        """Tell the readers that no more values come."""
        self._is_over = True
        self._wake()

    async def after(self, number: int) -> tuple[int, _T] | None:
        """Wait for a value newer than the one of this number; None once no more come."""
        while self._number <= number:
            if self._is_over:
                return None
            await self._changed.wait()
        value: Any = self._value
        return self._number, value

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Subscriber:
    """A bounded queue of results, as texts, that drops its oldest. In the event loop alone."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=EVENTS_WAITING)
        self._is_over = False
        self._came = asyncio.Event()

    def put(self, texts: list[str]) -> None:
        """Add results; a full queue drops its oldest."""
        self._texts.extend(texts)
        self._came.set()

    def finish(self) -> None:
        """Tell the reader that no more results come."""
        self._is_over = True
        self._came.set()

    async def take(self, patience_s: float) -> list[str] | None:
        """Wait for results and take all; empty if none comes in time, None once no more come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._came.wait()
        taken = list(self._texts)
        self._texts.clear()
        if not self._is_over:
            self._came.clear()
        return taken if taken or not self._is_over else None


class Broadcast:
    """Passes the results of a source's thread to subscribers and viewers, in the event loop that makes it.

    The preview is drawn in the service's pool, once for all viewers, while there are any.
    """

    def __init__(self, name: str, service: Service) -> None:
        self._name, self._service = name, service
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # guards the next two
        self._arrived: tuple[list[str], tuple[Frame, Detections] | None] = ([], None)
        self._is_scheduled = False
        self._subscribers: set[Subscriber] = set()
        self._newest: Latest[tuple[Frame, Detections]] = Latest()
        self._pictures: Latest[bytes] = Latest()
        self._drawing: asyncio.Task[None] | None = None
        self._viewers = 0
        self._is_over = False

    @property
    def has_subscribers(self) -> bool:
        """Whether results are wanted as texts."""
        return bool(self._subscribers)

    def publish(self, frame: Frame, found: Detections, text: str | None) -> None:
        """Pass on a frame's detections, and their text for subscribers; called in the source's thread."""
        with self._lock:
            texts = [*self._arrived[0], text][-EVENTS_WAITING:] if text else self._arrived[0]
            self._arrived = (texts, (frame, found))
            is_scheduled, self._is_scheduled = self._is_scheduled, True
        if not is_scheduled:
            self.call(self._deliver)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the event loop soon; from any thread."""
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(function)

    def _deliver(self) -> None:
        with self._lock:
            (texts, newest), self._arrived = self._arrived, ([], None)
            self._is_scheduled = False
        for subscriber in self._subscribers:
            subscriber.put(texts)
        if newest is not None:
            self._newest.put(newest)

    def finish(self) -> None:
        """Deliver the last results, and tell subscribers and viewers that no more come; in the event loop."""
        self._deliver()
        self._is_over = True
        for subscriber in self._subscribers:
            subscriber.finish()
        self._newest.finish()

    @contextmanager
    def subscribed(self) -> Iterator[Subscriber]:
        """Subscribe to the results from now on."""
        subscriber = Subscriber()
        self._subscribers.add(subscriber)
        if self._is_over:
            subscriber.finish()
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)

    @contextmanager
    def previewed(self) -> Iterator[Latest[bytes]]:
        """View the annotated frames, as JPEGs."""
        self._viewers += 1
        if self._drawing is None or self._drawing.done():
            self._pictures = Latest()
            self._drawing = asyncio.create_task(self._draw(self._pictures))
        try:
            yield self._pictures
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._drawing.cancel()
                self._drawing = None

    async def _draw(self, pictures: Latest[bytes]) -> None:
        number = 0
        try:
            while (newest := await self._newest.after(number)) is not None:
                start = self._loop.time()
                number, (frame, found) = newest
                pictures.put(await self._service.in_thread(_to_jpeg, frame, found, self._service.settings.label))
                spent_s = self._loop.time() - start
                await asyncio.sleep(max(0.0, 1 / self._service.settings.preview_fps - spent_s))
        except Exception:
            _log.exception("the preview of %s failed", self._name)
        finally:
            pictures.finish()


def _to_jpeg(frame: Frame, found: Detections, label: str | None) -> bytes:
    return encode(found.draw(frame.image, label=label), ".jpg")
