"""Uvicorn's protocols with limits: bytes per connection, and a deadline for each of its states.

| State | Ends after |
|---|---|
| no request yet, its headers, and bytes between requests that begin none | `header_s`, with 408 |
| the body | `body_s`, with 408, by `guard` |
| idle between requests | uvicorn's keep-alive |
| an answer, also the last one, or a WebSocket's message that is not read | `stall_s` |
| a WebSocket without a frame | `idle_s`, by `live` |

A connection has one request at a time: what is sent after a request and before its answer is dropped, and the
connection closed after the answer. So an attacker's thousand requests in one packet cost no more than one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from maskjet.serve import problems
from maskjet.serve.settings import Settings

SPARE = 16
"""Number of connections beyond the limit, reserved for health probes."""
_HEADER_BYTES = 2**16
_FRAMING_BYTES = 16  # most bytes of a chunk's size line
_FRAMES = 4096  # most WebSocket frames without a message: fragments, pings, pongs
_FED_BYTES = 2**12  # bytes of a WebSocket to parse at a time; may be hundreds of frames


def protocols(limits: Settings, *bases: type) -> tuple[type[_Http], type[_WebSocket]]:
    """Create HTTP and WebSocket protocol classes with these limits; `bases` are mixins."""
    http = type("Http", (*bases, _Http), {"limits": limits})
    return http, type("WebSocket", (*bases, _WebSocket), {"limits": limits})


class _AbortsStalled(asyncio.Protocol):
    """Aborts connections whose client stops reading, which would hold memory and a connection slot."""

    limits = Settings()
    """Set in a subclass per server, since uvicorn creates the instances."""
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # any unsent byte pauses writing, even after the last answer

    def pause_writing(self) -> None:
        super().pause_writing()
        transport: asyncio.Transport = self.transport  # type: ignore[attr-defined]
        self._stalled = asyncio.get_running_loop().call_later(self.limits.stall_s, transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stall_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_stall_timer()
        super().connection_lost(exc)

    def _stop_stall_timer(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class _WebSocket(_AbortsStalled, WebSocketsSansIOProtocol):
    """Uvicorn's WebSockets with a limit on control frames and fragments, and answers to bad handshakes."""

    _frames = 0  # frames since the application last read all messages

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _FED_BYTES):
            if not self.transport.is_closing():
                super().data_received(data[start : start + _FED_BYTES])
        if self.conn.handshake_exc is not None and not self.transport.is_closing():
            detail = f"The request must be a handshake of WebSockets, it is not: {self.conn.handshake_exc}."
            self.transport.write(refusal(problems.bad_request(detail)))
            self.transport.close()

    def handle_events(self) -> None:
        self._frames += len(self.conn.events)
        if self._frames > _FRAMES:
            self.transport.abort()
        else:
            super().handle_events()

    async def receive(self) -> Any:
        message = await super().receive()
        if self.queue.empty():
            self._frames = 0
        return message


class _Http(_AbortsStalled, HttpToolsProtocol):
    """Uvicorn's HTTP with limits on connections and on the seconds and bytes of headers."""

    _timer: asyncio.TimerHandle | None = None  # runs until the headers are complete
    _excess = 0  # bytes of headers, trailers and chunks' framing

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections + SPARE:
            self._refuse(too_many(self.limits))
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._timer is None and self._is_idle:  # also for bytes that are no request
            self._expect_headers()
        self._excess += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._get_upgrade() == b"websocket":
                self.handle_websocket_upgrade()
            else:
                self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if self._is_idle or self.cycle.more_body:
                cause = error.__context__
                invalid = problems.bad_request("The request must be HTTP/1.1, it is not.")
                self._refuse(cause if isinstance(cause, problems.ProblemError) else invalid)
            else:  # garbage after a complete request
                self.cycle.keep_alive = False
            return
        if self._excess > _HEADER_BYTES:
            self._refuse(_too_large())

    @property
    def _is_idle(self) -> bool:
        """Whether no request is in progress; one whose headers are incomplete does not count."""
        return self.cycle is None or self.cycle.response_complete

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a request for an unknown upgrade again, as plain HTTP; httptools would skip its body."""
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                head += [name, b": ", value, b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"".join([*head, b"\r\n", rest]))

    def _should_upgrade(self) -> bool:
        return True  # leaves all upgrade requests to `data_received`

    def on_message_begin(self) -> None:
        if not self._is_idle:
            raise problems.bad_request("A connection must have one request at a time.")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > _HEADER_BYTES:
            raise _too_large()
        if self.parser.get_method() == b"CONNECT":
            raise problems.ProblemError(405, "method-not-allowed", "The service is no proxy.")
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._excess = max(0, self._excess - len(body) - min(len(body), _FRAMING_BYTES))
        super().on_body(body)

    def _expect_headers(self) -> None:
        self._excess = 0
        self._timer = self.loop.call_later(self.limits.header_s, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        detail = f"The headers must come within {self.limits.header_s:g} s, they did not."
        self._refuse(problems.ProblemError(408, "too-slow", detail))

    def _refuse(self, problem: problems.ProblemError) -> None:
        """Answer with a problem, unless the application has begun to answer, and close the connection."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self._is_idle or not self.cycle.response_started:
            self.transport.write(refusal(problem))
        self.transport.close()


def _too_large() -> problems.ProblemError:
    detail = f"Headers, trailers and chunks' sizes must be at most {_HEADER_BYTES:,} bytes, they are more."
    return problems.ProblemError(431, "headers-too-large", detail)


def too_many(limits: Settings) -> problems.ProblemError:
    """Problem details for a connection beyond the limit."""
    return problems.unavailable(f"The service has {limits.connections} connections already.")


def refusal(problem: problems.ProblemError) -> bytes:
    """Encode a problem as a raw HTTP response that closes the connection."""
    body = problem.body()
    lines = (
        f"HTTP/1.1 {problem.status} {problem.as_dict()['title']}",
        f"Content-Type: {problems.MEDIA_TYPE}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body
