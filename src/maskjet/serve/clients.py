"""Cancel work for clients that disconnect before they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from maskjet.serve.problems import GoneError

_R = TypeVar("_R")
_QUICK_S = 0.02  # most work is faster, and needs no second task


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _R]) -> _R:
    """Run work for a client whose request has been read; a disconnect cancels it, and raises GoneError."""
    task, watching, has_gone = asyncio.current_task(), set[asyncio.Task[None]](), False
    assert task is not None

    async def watch() -> None:
        nonlocal has_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        has_gone = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(_QUICK_S, lambda: watching.add(asyncio.ensure_future(watch())))
    try:
        return await work
    except asyncio.CancelledError:
        if has_gone and not task.uncancel():
            raise GoneError from None
        raise
    finally:
        timer.cancel()
        for each in watching:
            each.cancel()
            await asyncio.wait((each,))
