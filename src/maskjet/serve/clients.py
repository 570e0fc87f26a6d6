"""Clients that may go away before they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from maskjet.serve.problems import GoneError

_R = TypeVar("_R")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _R]) -> _R:
    """Do work for a client whose request has been read; it is cancelled when the client goes away.

    Raises:
        GoneError: The client has gone.
        Exception: Any error of the work.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        return task.result()
    finally:
        for each in (task, watch):
            if not each.done():
                each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
