"""Requests between the worker processes of a service, over loopback ports.

They carry a secret that the supervisor gives the workers; without it whoever reaches such a port is a client like
others.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Scope

from maskjet.serve import problems

if TYPE_CHECKING:
    from maskjet.serve.process_table import ProcessTable

_HEADER = b"x-maskjet-secret"
_FIRST = 0  # number of the worker that watches the sources
_PATIENCE_S = 1.0  # timeout for metrics and status
_FORWARD_S = 30.0  # timeout of a forwarded request, which may include DNS
_NOT_FORWARDED = frozenset({"connection", "transfer-encoding", "date"})


def is_from_worker(scope: Scope) -> bool:
    """Whether a request was forwarded by another worker, which has authenticated it."""
    other_workers: OtherWorkers | None = scope["app"].state.other_workers
    return other_workers is not None and other_workers.have_sent(scope)


class OtherWorkers:
    """Client of one worker for requests to the others."""

    def __init__(self, table: ProcessTable, number: int, device: str, secret: str) -> None:
        self._table, self._number, self._device, self._secret = table, number, device, secret.encode()
        limits = httpx.Limits(max_keepalive_connections=0)  # requests are rare, and workers may restart
        self._client = httpx.AsyncClient(headers={_HEADER: self._secret}, limits=limits, trust_env=False)

    @property
    def are_ready(self) -> bool:
        """Whether all workers were ready at the same time once."""
        return self._table.were_all_ready

    @property
    def has_sources(self) -> bool:
        """Whether this worker watches the sources."""
        return self._number == _FIRST

    @property
    def place(self) -> dict[str, Any]:
        """This worker's number, device and process id, as JSON types."""
        return {"process": self._number, "device": self._device, "pid": os.getpid()}

    def have_sent(self, scope: Scope) -> bool:
        """Whether a request carries the secret of the workers."""
        return any(name == _HEADER and hmac.compare_digest(value, self._secret) for name, value in scope["headers"])

    async def ask_all(self, path: str, own: str) -> dict[int, str | None]:
        """Send a GET to all other workers; returns answers by number, `own` for this one, None after 1 s."""
        numbers = range(len(self._table.rows))
        others = (self._ask(number, path) for number in numbers if number != self._number)
        answers = await asyncio.gather(*others)
        answers.insert(self._number, own)
        return dict(zip(numbers, answers, strict=True))

    async def _ask(self, number: int, path: str) -> str | None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                answer = await self._client.get(self._url(number, path))
        except (httpx.HTTPError, TimeoutError):
            return None
        return answer.text if answer.status_code == 200 else None

    def _url(self, number: int, path: str) -> str:
        """Loopback URL of a worker; raises httpx.ConnectError if the worker is not alive."""
        row = self._table.rows[number]
        if not row.is_alive:
            raise httpx.ConnectError(f"Process {number} does not serve.")
        return f"http://127.0.0.1:{row.port}{path}"

    async def forward(self, request: Request, body: bytes) -> Response:
        """Forward an authenticated request, without its token, to the worker that watches the sources.

        Raises:
            ProblemError: 503, it does not answer.
        """
        try:
            url = self._url(_FIRST, quote(request.scope["path"]))
            asked = self._client.build_request(request.method, url, content=body, timeout=None)
            async with asyncio.timeout(_FORWARD_S):
                answer = await self._client.send(asked, stream=True)
                is_endless = "transfer-encoding" in answer.headers
                body = b"" if is_endless else await answer.aread()
        except (httpx.HTTPError, TimeoutError):
            raise problems.unavailable("The process that watches the sources is not ready; try again later.") from None
        headers = {name: value for name, value in answer.headers.items() if name not in _NOT_FORWARDED}
        if is_endless:
            return StreamingResponse(_read(answer), answer.status_code, headers)
        return Response(body, answer.status_code, headers)


async def _read(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    except httpx.HTTPError as error:
        raise problems.unavailable("The process that watches the sources has ended.") from error
    finally:
        await answer.aclose()
