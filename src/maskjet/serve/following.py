"""Those who look on at a source: readers of its results, and of its newest picture; in the event loop alone."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, Generic, TypeVar

EVENTS_WAITING = 64
"""Most results that wait for one reader."""
_T = TypeVar("_T")


class Latest(Generic[_T]):
    """The newest of several values, for readers that may be too slow for all of them; in the event loop alone."""

    def __init__(self) -> None:
        self._number = 0
        self._value: _T | None = None
        self._is_over = False
        self._changed = asyncio.Event()

    def put(self, value: _T) -> None:
        """Replace the value."""
        self._value = value
        self._number += 1
        self._tell()

    def finish(self) -> None:
        """Say that no more values come."""
        self._is_over = True
        self._tell()

    async def after(self, number: int) -> tuple[int, _T] | None:
        """Wait for a value that is newer than the one of this number; None if none comes."""
        while self._number <= number:
            if self._is_over:
                return None
            await self._changed.wait()
        value: Any = self._value
        return self._number, value

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Follower:
    """One reader of a source's results; in the event loop alone."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=EVENTS_WAITING)
        self._is_over = False
        self._came = asyncio.Event()

    def put(self, texts: list[str]) -> None:
        """Add results; the oldest leave if they find no room."""
        self._texts.extend(texts)
        self._came.set()

    def finish(self) -> None:
        """Say that no more results come."""
        self._is_over = True
        self._came.set()

    async def take(self, patience_s: float) -> list[str] | None:
        """The results that wait, after waiting for one; empty if none comes in time, None if none comes any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._came.wait()
        taken = list(self._texts)
        self._texts.clear()
        if not self._is_over:
            self._came.clear()
        return taken if taken or not self._is_over else None
