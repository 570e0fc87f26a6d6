"""Placeholder application while no worker takes connections, as at the start."""

from __future__ import annotations

import asyncio
import socket

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from maskjet.serve import problems, server
from maskjet.serve.settings import Settings


class PlaceholderApp:
    """Answers health probes and refuses other requests, with the service's limits on connections and headers.

    Args:
        settings: The service's.
    """

    def __init__(self, settings: Settings) -> None:
        self.is_draining = False
        """Whether the service is shutting down."""
        self._config = server.configure(self, settings)
        self._config.load()
        self._state = ServerState()
        self._tasks: set[asyncio.Task[bool]] = set()

    @property
    def open(self) -> int:
        """Open connections."""
        return len(self._state.connections)

    def take(self, connection: socket.socket) -> None:
        """Answer one request of a connection."""
        task = asyncio.create_task(server.adopt(connection, self._config, self._state))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013})
            return
        response = self._respond(scope["path"])
        response.headers["Connection"] = "close"  # a worker may answer the next request
        await response(scope, receive, send)

    def _respond(self, path: str) -> Response:
        state = "shutting down" if self.is_draining else "warming up"
        match path:
            case "/health/live":
                return PlainTextResponse("live")
            case "/health/ready":
                return PlainTextResponse(state, 503)
            case "/v2/health/live":
                return JSONResponse({"live": True})
            case "/v2/health/ready":
                return JSONResponse({"ready": False}, 400)
        return problems.unavailable(f"The service is {state}; try again later.").response(path)
