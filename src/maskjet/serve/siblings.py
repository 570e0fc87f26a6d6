"""The other processes of a service, as one of them sees them: requests to them, and their measurements with its own.

A request between processes goes over a Unix socket of its own, which the process that listens hands on: there is no
path in the file system that others could reach.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import h11
from fastapi import Request, Response
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from maskjet.serve import problems

if TYPE_CHECKING:
    from maskjet.serve.handover import Job

STATE = {"is_sibling": True}
"""What the scope's state has where another process of the service sends a request; a client can't set it."""
_LABEL = "process"
_FIRST = 0  # the process that watches the sources
_PATIENCE_S = 1.0  # for measurements
_LONGEST_S = 30.0  # for the beginning of a forwarded answer: a host's name may be looked up
_PIECE_BYTES = 2**16
_OF_CONNECTION = frozenset({"connection", "transfer-encoding", "date"})


def is_from_sibling(scope: Scope) -> bool:
    """Whether another process of the service sends a request, which it has checked and counted."""
    return bool(scope.get("state", {}).get("is_sibling"))


class Siblings:
    """All processes of a service, from the view of one.

    Args:
        job: What this process is to do.
        connect: Gives a connection to another one, by its number.
    """

    def __init__(self, job: Job, connect: Callable[[int], socket.socket]) -> None:
        self._job, self._connect = job, connect

    @property
    def has_sources(self) -> bool:
        """Whether this process watches the sources."""
        return self._job.number == _FIRST

    @property
    def place(self) -> dict[str, Any]:
        """This process among all, as JSON types."""
        return {_LABEL: self._job.number, "device": self._job.device, "pid": os.getpid()}

    async def ask_all(self, path: str, own: str) -> dict[int, str | None]:
        """The answers of all processes to a GET by number; None for one that does not answer within a second.

        Args:
            path: What is asked for.
            own: This process's answer.
        """
        numbers = range(self._job.count)
        others = (self._ask(number, path) for number in numbers if number != self._job.number)
        answers = await asyncio.gather(*others)
        answers.insert(self._job.number, own)
        return dict(zip(numbers, answers, strict=True))

    async def _ask(self, number: int, path: str) -> str | None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                exchange = await _Exchange.begin(self._connect(number), "GET", path)
                try:
                    body = b"".join([piece async for piece in exchange.body()])
                finally:
                    exchange.close()
        except OSError:
            return None
        return body.decode() if exchange.status == 200 else None

    async def metrics(self, own: bytes) -> bytes:
        """The measurements of all processes that answer, each sample with its process."""
        texts = await self.ask_all("/metrics", own.decode())
        return await asyncio.to_thread(merge, {number: text for number, text in texts.items() if text is not None})

    async def forward(self, request: Request, body: bytes) -> Response:
        """Let the process that watches the sources answer a request.

        Raises:
            ProblemError: 503, it does not.
        """
        try:
            async with asyncio.timeout(_LONGEST_S):
                exchange = await _Exchange.begin(
                    self._connect(_FIRST), request.method, quote(request.scope["path"]), body
                )
        except OSError:
            raise problems.unavailable("The process that watches the sources is not ready; try again later.") from None
        return _Forwarded(exchange)


class _Exchange:
    """One request to another process, and its answer. Neither token nor cookie is passed on: they were checked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def begin(cls, connection: socket.socket, method: str, target: str, body: bytes = b"") -> _Exchange:
        """Send a request, and read the answer's headers.

        Raises:
            OSError: The other process has gone.
        """
        exchange = cls(*await asyncio.open_unix_connection(sock=connection))
        try:
            await exchange._begin(method, target, body)
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _begin(self, method: str, target: str, body: bytes) -> None:
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
                self._http.receive_data(await self._reader.read(_PIECE_BYTES))
        except h11.RemoteProtocolError as error:  # the end came too early
            raise ConnectionResetError(f"The process has gone: {error}.") from error
        return event

    async def body(self) -> AsyncIterator[bytes]:
        """The pieces of the body, as they come; raises as `begin` where it breaks off."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    def close(self) -> None:
        """Close the connection; the other process then stops answering."""
        self._writer.close()


class _Forwarded(StreamingResponse):
    """The answer of another process, passed on as it comes."""

    def __init__(self, exchange: _Exchange) -> None:
        headers = {name: value for name, value in exchange.headers.items() if name not in _OF_CONNECTION}
        super().__init__(exchange.body(), exchange.status, headers)
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except ConnectionResetError as error:
            raise problems.unavailable("The process that watches the sources has ended.") from error
        finally:
            self._exchange.close()


def merge(texts: Mapping[int, str]) -> bytes:
    """Join measurements in Prometheus' text format: one family of each name, each sample with its process.

    Args:
        texts: The measurements by number of the process.
    """
    families: dict[str, Metric] = {}
    for number, text in texts.items():
        for family in text_string_to_metric_families(text):
            joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                joined.add_sample(sample.name, {**sample.labels, _LABEL: str(number)}, sample.value)
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    return generate_latest(registry)


class _Families(Collector):
    """Families that are complete."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
