"""Requests between the worker processes of a service.

Each request has a Unix socket pair of its own, passed on by the acceptor, so that no path in the file system is open to
others.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import h11
from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from maskjet.serve import problems

if TYPE_CHECKING:
    from maskjet.serve.handover import WorkerConfig

STATE = {"is_sibling": True}
"""State in the scope of requests from another worker; a client can't set it."""
_FIRST = 0  # the worker that has the sources
_PATIENCE_S = 1.0  # for metrics and status
_FORWARD_S = 30.0  # until a forwarded answer begins, which may need DNS
_CHUNK_BYTES = 2**16
_NOT_FORWARDED = frozenset(
    # A client that has read the stated length may ask again before the last message of the answer.
    {"connection", "transfer-encoding", "date", "content-length"}
)


def is_from_sibling(scope: Scope) -> bool:
    """Whether a request comes from another worker, which has checked and counted it."""
    return bool(scope.get("state", {}).get("is_sibling"))


class Siblings:
    """The workers of a service, as one of them reaches them.

    Args:
        config: This worker's configuration.
        connect: Opens a connection to the worker of a number.
    """

    def __init__(self, config: WorkerConfig, connect: Callable[[int], socket.socket]) -> None:
        self._config, self._connect = config, connect

    @property
    def has_sources(self) -> bool:
        """Whether this worker has the sources."""
        return self._config.number == _FIRST

    @property
    def place(self) -> dict[str, Any]:
        """This worker's number, device and process id, as JSON types."""
        return {"process": self._config.number, "device": self._config.device, "pid": os.getpid()}

    async def ask_all(self, path: str, own: str) -> dict[int, str | None]:
        """All workers' answers to a GET by number; None for one that does not answer within a second.

        Args:
            path: The path to GET.
            own: This worker's answer.
        """
        numbers = range(self._config.count)
        others = (self._ask(number, path) for number in numbers if number != self._config.number)
        answers = await asyncio.gather(*others)
        answers.insert(self._config.number, own)
        return dict(zip(numbers, answers, strict=True))

    async def _ask(self, number: int, path: str) -> str | None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                answer = await _Request.send(self._connect(number), "GET", path)
                try:
                    body = b"".join([chunk async for chunk in answer.body()])
                finally:
                    answer.close()
        except OSError:
            return None
        return body.decode() if answer.status == 200 else None

    async def forward(self, request: Request, body: bytes) -> Response:
        """Forward a request to the worker that has the sources.

        Raises:
            ProblemError: 503, it does not answer.
        """
        try:
            async with asyncio.timeout(_FORWARD_S):
                answer = await _Request.send(self._connect(_FIRST), request.method, quote(request.scope["path"]), body)
        except OSError:
            raise problems.unavailable("The process that watches the sources is not ready; try again later.") from None
        return _Forwarded(answer)


class _Request:
    """A request to another worker, without token and cookie, which were checked; and its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def send(cls, connection: socket.socket, method: str, target: str, body: bytes = b"") -> _Request:
        """Send a request, and read the answer's headers.

        Raises:
            OSError: The worker has ended.
        """
        answer = cls(*await asyncio.open_unix_connection(sock=connection))
        try:
            await answer._send(method, target, body)
        except BaseException:
            answer.close()
            raise
        return answer

    async def _send(self, method: str, target: str, body: bytes) -> None:
        headers = {"Host": "localhost", "Content-Length": str(len(body)), "Connection": "close"}
        request = h11.Request(method=method, target=target, headers=list(headers.items()))
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()
        answer = await self._next()
        if not isinstance(answer, h11.Response):
            raise ConnectionResetError("The process has gone.")
        self.status = answer.status_code
        self.headers = {name.decode(): value.decode("latin-1") for name, value in answer.headers}

    async def _next(self) -> Any:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(_CHUNK_BYTES))
        except h11.RemoteProtocolError as error:  # the connection ended too early
            raise ConnectionResetError(f"The process has gone: {error}.") from error
        return event

    async def body(self) -> AsyncIterator[bytes]:
        """The chunks of the body as they come; raises OSError if they break off."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    def close(self) -> None:
        """Close the connection, which cancels an unfinished answer."""
        self._writer.close()


class _Forwarded(StreamingResponse):
    """Another worker's answer, passed on as it comes."""

    def __init__(self, answer: _Request) -> None:
        headers = {name: value for name, value in answer.headers.items() if name not in _NOT_FORWARDED}
        super().__init__(answer.body(), answer.status, headers)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except ConnectionResetError as error:
            raise problems.unavailable("The process that watches the sources has ended.") from error
        finally:
            self._answer.close()
