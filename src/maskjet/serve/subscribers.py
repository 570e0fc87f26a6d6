"""Subscribers to the results or preview of a source; none of them can block the source."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from maskjet.drawing.showing import encode

if TYPE_CHECKING:
    from maskjet.detections import Detections
    from maskjet.serve.service import Service
    from maskjet.sources.frames import Frame

EVENTS_WAITING = 64
"""Queue length per subscriber, in results."""
_T = TypeVar("_T")
_log = logging.getLogger("maskjet.serve")


def offer(queue: asyncio.Queue[_T], item: _T) -> None:
    """Put an item into a bounded queue, which drops its oldest item if full."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(item)


class Broadcast:
    """Passes results from a source's thread to subscribers and viewers in the event loop that created it.

    Each has a queue that drops its oldest, and ends with None. The preview is drawn in the service's pool, once for all
    viewers, while there are any.
    """

    def __init__(self, name: str, service: Service) -> None:
        self._name, self._service = name, service
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[str] = deque(maxlen=EVENTS_WAITING)  # results from the source's thread
        self._subscribers: set[asyncio.Queue[str | None]] = set()
        self._newest: tuple[Frame, Detections] | None = None
        self._viewers: set[asyncio.Queue[bytes | None]] = set()
        self._to_draw = asyncio.Event()
        self._drawing: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def has_subscribers(self) -> bool:
        """Whether anyone subscribes to results as text."""
        return bool(self._subscribers)

    def publish(self, frame: Frame, found: Detections, text: str | None) -> None:
        """Publish a frame's detections, and their text for subscribers; called in the source's thread."""
        if text:
            self._arrived.append(text)
        self._newest = frame, found
        self.call(self._deliver)

    def call(self, function: Callable[[], None]) -> None:
        """Schedule a function in the event loop, from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _deliver(self) -> None:
        while self._arrived:
            text = self._arrived.popleft()
            for subscriber in self._subscribers:
                offer(subscriber, text)
        self._to_draw.set()

    def finish(self) -> None:
        """Deliver the last results, and end all subscriptions; called in the event loop."""
        self._deliver()
        if not self._is_over:
            for subscriber in self._subscribers:
                offer(subscriber, None)
        self._is_over = True

    @contextmanager
    def subscribed(self) -> Iterator[asyncio.Queue[str | None]]:
        """Subscribe to future results, as texts; None marks the end."""
        subscriber: asyncio.Queue[str | None] = asyncio.Queue(EVENTS_WAITING)
        self._subscribers.add(subscriber)
        if self._is_over:
            offer(subscriber, None)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)

    @contextmanager
    def previewed(self) -> Iterator[asyncio.Queue[bytes | None]]:
        """Subscribe to annotated frames, as JPEGs; starts with the newest, even if the source has ended."""
        viewer: asyncio.Queue[bytes | None] = asyncio.Queue(2)  # newest picture, and end marker
        self._viewers.add(viewer)
        self._to_draw.set()
        if self._drawing is None or self._drawing.done():
            self._drawing = asyncio.create_task(self._draw())
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                self._drawing.cancel()
                self._drawing = None

    async def _draw(self) -> None:
        try:
            is_last = False
            while not is_last:
                await self._to_draw.wait()
                self._to_draw.clear()
                start, is_last = self._loop.time(), self._is_over
                if self._newest is not None:
                    picture = await self._service.in_thread(_to_jpeg, *self._newest, self._service.settings.label)
                    for viewer in self._viewers:
                        offer(viewer, picture)
                    spent_s = self._loop.time() - start
                    await asyncio.sleep(0 if is_last else max(0.0, 1 / self._service.settings.preview_fps - spent_s))
        except Exception:
            _log.exception("the preview of %s failed", self._name)
        for viewer in self._viewers:  # not reached if cancelled for lack of viewers
            offer(viewer, None)


def _to_jpeg(frame: Frame, found: Detections, label: str | None) -> bytes:
    return encode(found.draw(frame.image, label=label), ".jpg")
