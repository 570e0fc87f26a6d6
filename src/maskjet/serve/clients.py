"""Cancelling work for clients that disconnect before they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from maskjet.serve.problems import GoneError

_R = TypeVar("_R")
_QUICK_S = 0.02  # most work takes less, and is spared the second task


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _R]) -> _R:
    """Do work for a client whose request has been read; a disconnect cancels it.

    Raises:
        GoneError: The client has gone.
        Exception: Any error of the work.
    """
    task, watch = asyncio.current_task(), _DisconnectWatch(receive)
    assert task is not None
    timer = asyncio.get_running_loop().call_later(_QUICK_S, watch.start, task)
    try:
        return await work
    except asyncio.CancelledError:
        if watch.has_gone and not task.uncancel():
            raise GoneError from None
        raise
    finally:
        timer.cancel()
        await watch.end()


class _DisconnectWatch:
    """Cancels a task when its client disconnects.

    Args:
        receive: The request's ASGI receive, after its body.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None
        self._is_over = False
        self.has_gone = False
        """Whether the task was cancelled because the client disconnected."""

    def start(self, task: asyncio.Task[Any]) -> None:
        self._watching = asyncio.ensure_future(self._run(task))

    async def _run(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_over:
            self.has_gone = True
            task.cancel()

    async def end(self) -> None:
        self._is_over = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
