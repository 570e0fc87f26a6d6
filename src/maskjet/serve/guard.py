"""Authentication and limits: ASGI middleware that checks each request before any work.

Order: shutting down, concurrent requests, token, Origin, Content-Length. Then the body's bytes and seconds are limited
while a route reads it. The body of a refused request is not read.

With a token, a client sends it as `Authorization: Bearer`, or as a WebSocket's subprotocol `bearer.<base64url>` beside
`maskjet`, since browsers send no other header with WebSockets. Without a token, only this machine is answered:
connections to an address other than loopback are refused, as whoever serves `create_app` may listen more widely than
the settings say; pages of other sites are refused by Origin, and by Host against DNS rebinding.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from maskjet.serve import problems
from maskjet.serve.other_workers import is_from_worker
from maskjet.serve.service import Reservation, Service
from maskjet.serve.settings import Settings, is_loopback

HEALTH = frozenset({"/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"})
"""Paths of health probes: answered while draining, beyond the limits, and without a token."""
OPEN = HEALTH | {"/", "/docs", "/openapi.json"}
"""Paths that need no token, as they show no images or models."""
OPEN_FOLDER = "/page/"
"""Prefix of the page's own files, which need no token."""
_LINGER_S, _LINGER_BYTES = 1.0, 2**23
_log = logging.getLogger("maskjet.serve")


class Guard:
    """Refuses requests before any work, by limits, token, address, Host and Origin; limits their bodies."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service, self._settings = app, service, service.settings
        self._token = None if self._settings.token is None else _digest(self._settings.token)
        self._concurrent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        with self._service.memory.reserve() as reservation:
            guarded = _GuardedRequest(scope, receive, send, self._settings, reservation)
            self._concurrent += 1
            try:
                if not is_from_worker(scope):
                    self._check(scope)
                await self._app(scope, guarded.receive, guarded.send)
            except asyncio.CancelledError:
                if self._service.is_closed:  # request exceeded `drain_s`
                    await guarded.refuse(problems.unavailable("The service is shutting down."))
                raise
            except problems.GoneError:
                await guarded.refuse(problems.ProblemError(499, "gone", "The client went away."))  # for the log only
            except Exception as error:
                await guarded.refuse(problems.to_problem(error))
            finally:
                self._concurrent -= 1

    def _check(self, scope: Scope) -> None:
        path, headers = scope["path"], Headers(scope=scope)
        if path not in HEALTH:
            if self._service.is_closed:
                raise problems.unavailable("The service is shutting down.")
            if self._concurrent > self._settings.connections:
                raise problems.unavailable(f"The service has {self._settings.connections} requests under way.")
            try:
                self._check_access(scope, headers, is_open=path in OPEN or path.startswith(OPEN_FOLDER))
            except ValueError:  # raised by urlsplit
                raise problems.bad_request("Host and Origin must be those of URLs, they are not.") from None
        length = int(headers.get("content-length", 0))  # a number of 64 bits, or the server has refused it
        if length > self._settings.body_bytes:
            raise problems.too_large(f"The body has {length} bytes, the limit is {self._settings.body_bytes:,}.")

    def _check_access(self, scope: Scope, headers: Headers, *, is_open: bool) -> None:
        """Check the token or, without one, address, Host and Origin; raises ProblemError 401 or 403."""
        if self._token is None:
            if not self._settings.insecure:
                self._check_address(scope)
                self._check_host(headers)
            self._check_origin(headers)
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if not given:
            scheme, given = "bearer", _subprotocol(headers)
        if scheme.lower() == "bearer" and hmac.compare_digest(_digest(given.strip()), self._token):
            return
        if not is_open:
            how = "is wrong" if given else "is missing: send Authorization: Bearer TOKEN"
            raise problems.ProblemError(
                401, "unauthorized", f"The token {how}.", headers={"WWW-Authenticate": 'Bearer realm="maskjet"'}
            )

    def _check_address(self, scope: Scope) -> None:
        """Refuse connections to a non-loopback address; Unix sockets have no address."""
        address, _ = scope.get("server") or ("localhost", None)
        if not self._is_own(address):
            detail = "Without a token only this machine is answered: set MASKJET_TOKEN for the service, or insecure."
            raise problems.ProblemError(403, "needs-token", detail)

    def _check_host(self, headers: Headers) -> None:
        """Refuse Host headers that are not loopback names, against DNS rebinding."""
        name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if not self._is_own(name):
            raise problems.ProblemError(
                403, "foreign-host", f"Host must be a name of this machine, got {name[:100]!r}; a token lifts this."
            )

    def _is_own(self, name: str) -> bool:
        return name == self._settings.host or is_loopback(name)

    @staticmethod
    def _check_origin(headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            raise problems.ProblemError(
                403, "foreign-origin", f"Origin must be the service's own, got {origin[:100]!r}; a token lifts this."
            )


def _digest(text: str) -> bytes:
    """Digest of a text, for comparison in constant time at any length."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()


def _subprotocol(headers: Headers) -> str:
    """Token from the subprotocols of a WebSocket, the only header that a page can set; "" without one."""
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        kind, _, encoded = protocol.strip().partition(".")
        if kind == "bearer":
            try:
                return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
            except ValueError:
                return encoded
    return ""


class _GuardedRequest:
    """ASGI channel of one request: limits its body, and closes the connection if the body was not read."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, settings: Settings, reservation: Reservation
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._settings, self._reservation = settings, reservation
        self._deadline = asyncio.get_running_loop().time() + self._settings.body_s
        headers = Headers(scope=scope)
        self._is_read = scope["type"] != "http" or not (
            "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        )
        self._is_answered = False

    async def receive(self) -> Message:
        """Receive the next message; raises ProblemError if the body is too large or too slow."""
        if self._is_read:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise problems.ProblemError(
                408, "too-slow", f"The body must come within {self._settings.body_s:g} s, it did not."
            ) from None
        if message["type"] == "http.request":
            count = len(message.get("body", b""))
            if self._reservation.taken + count > self._settings.body_bytes:
                raise problems.too_large(f"The body has more bytes than the limit of {self._settings.body_bytes:,}.")
            self._reservation.take(count)
            self._is_read = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a message; a response before the body was read closes the connection."""
        if message["type"] in ("http.response.start", "websocket.accept", "websocket.close"):
            self._is_answered = True
            if message["type"] == "http.response.start" and not self._is_read:
                MutableHeaders(scope=message)["Connection"] = "close"
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if is_last and not self._is_read:
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _linger(self) -> None:
        """Discard input for a moment; else a client that still sends sees a reset instead of the answer."""
        dropped = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while dropped < _LINGER_BYTES:
                    message = await self._receive()
                    dropped += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    async def refuse(self, problem: problems.ProblemError) -> None:
        """Answer with a problem, unless the response has started."""
        if self._is_answered:
            _log.warning("a response broke off: %s", problem)
            raise problem
        if self._scope["type"] == "http":
            await problem.response(self._scope["path"])(self._scope, self._receive, self.send)
            return
        response = problem.response()
        start = {"type": "websocket.http.response.start", "status": problem.status, "headers": response.raw_headers}
        await self._send(start)
        await self._send({"type": "websocket.http.response.body", "body": response.body})
