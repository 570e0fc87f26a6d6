"""Protocol between acceptor and workers: configuration, control messages, passed sockets.

A message is a list of texts and numbers, with a socket or without. The acceptor, which listens, sends ("take",
"client") with a client's connection, ("take", "sibling") with another worker's, ("all_ready",) once all workers are
ready, ("drain",) to shut down, and ("last",) after the last connection. A worker sends ("serving",), ("ready",),
("taken",) and ("closed",) for each connection, ("reach", number) with a connection for another worker, and ("failed",
kind, text).
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from maskjet.devices import Place

_MESSAGE_BYTES = 2**16
_NO_ROOM = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})
_RETRY_S = 0.05
_MOST_UNTAKEN = 64  # connections sent to one worker that it has not taken
_log = logging.getLogger("maskjet.serve")


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of a worker, which reads it from standard input, as it includes the token."""

    number: int
    """The worker's number, from 0; worker 0 has the sources."""
    count: int
    """Workers of the service."""
    device: str
    """Its device, as the acceptor names it."""
    starts: int
    """Restarts of this worker so far."""
    all_were_ready: bool
    """Whether all workers have been ready at once, so that this one need not wait for others."""
    models: Mapping[str, str]
    """Models as `maskjet.load` takes them, by name."""
    weights: str | None
    """Checkpoint of the only model."""
    engine: Mapping[str, Any]
    """Fields of `EngineConfig`."""
    settings: Mapping[str, Any] = field(repr=False)
    """Fields of `Settings`."""

    def to_file(self) -> BinaryIO:
        """Write it to a file in memory."""
        file = os.fdopen(os.memfd_create("maskjet-worker"), "w+b")
        file.write(json.dumps(asdict(self)).encode())
        file.seek(0)
        return file

    @classmethod
    def from_file(cls, file: BinaryIO) -> WorkerConfig:
        """Read a file of `to_file`."""
        return cls(**json.load(file))


class Channel:
    """One end of the socket between acceptor and worker, in an event loop.

    Sending never blocks: messages wait while the socket is full. They are few, as a worker that does not take its
    connections gets no more.

    Args:
        end: An end of `pair`.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        end.set_inheritable(False)
        self._end = end
        self._waiting: deque[tuple[bytes, socket.socket | None]] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._receive: Callable[[list[Any], socket.socket | None], None] | None = None

    @staticmethod
    def pair() -> tuple[socket.socket, socket.socket]:
        """Both ends of a socket that preserves message boundaries."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(self, receive: Callable[[list[Any], socket.socket | None], None]) -> None:
        """Call a function with each message and its socket, from now on."""
        self._receive = receive
        asyncio.get_running_loop().add_reader(self._end, self.read)

    def send(self, *message: Any, passed: socket.socket | None = None) -> None:
        """Send a message with a socket, which is then closed here; ignored if the other end has closed."""
        self._waiting.append((json.dumps(message).encode(), passed))
        if self._retry is None:
            self._flush()

    def _flush(self) -> None:
        self._retry = None
        while self._waiting:
            data, passed = self._waiting[0]
            try:
                socket.send_fds(self._end, [data], [] if passed is None else [passed.fileno()])
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._flush)
                    return
            self._waiting.popleft()
            if passed is not None:
                passed.close()

    def read(self) -> None:
        """Read all messages that have arrived; only after `start`."""
        assert self._receive is not None
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(
                    self._end, _MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return
            except ConnectionResetError:  # once, if the other end closed with unread messages; its own still follow
                continue
            if not data:
                asyncio.get_running_loop().remove_reader(self._end)
                return
            passed = socket.socket(fileno=descriptors[0]) if descriptors else None
            self._receive(json.loads(data), passed)

    def close(self) -> None:
        """Close this end, and the sockets that wait to be sent."""
        if self._retry is not None:
            self._retry.cancel()
        with suppress(RuntimeError):  # the event loop has ended
            asyncio.get_running_loop().remove_reader(self._end)
        for _, passed in self._waiting:
            if passed is not None:
                passed.close()
        self._waiting.clear()
        self._end.close()


class WorkerHandle:
    """The acceptor's handle on a worker process.

    Attributes:
        open: Clients' connections that it has taken or was sent.
        is_serving: Whether it takes connections.
        is_ready: Whether its models have answered frames.
        failure: Exception type and message that it failed with.
    """

    def __init__(self, place: Place, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.place, self.process, self.channel = place, process, channel
        self.open = 0
        self.is_serving = self.is_ready = False
        self.failure: tuple[str, str] | None = None
        self.handed_at = 0.0
        self._patience: asyncio.TimerHandle | None = None
        self._untaken: deque[tuple[socket.socket, bool, float]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether it may be sent another connection."""
        return len(self._untaken) < _MOST_UNTAKEN

    def waits_s(self, now: float) -> float:
        """Seconds that the oldest connection has waited to be taken."""
        return now - self._untaken[0][2] if self._untaken else 0.0

    def hand(self, connection: socket.socket, *, is_client: bool) -> None:
        """Send a connection to the worker; a copy is kept here until it has taken it.

        Raises:
            OSError: No descriptor is left for the copy.
        """
        copy = connection.dup()
        self.handed_at = time.monotonic()
        self._untaken.append((connection, is_client, self.handed_at))
        self.open += is_client
        self.channel.send("take", "client" if is_client else "sibling", passed=copy)

    def taken(self) -> None:
        """Close the copy of the oldest connection, which the worker has taken."""
        self._untaken.popleft()[0].close()

    def close(self) -> list[socket.socket]:
        """Clean up after the worker has ended; returns the clients' connections that it had not taken."""
        self.channel.read()  # its last messages
        self.channel.close()
        if self._patience is not None:
            self._patience.cancel()
        clients = []
        for connection, is_client, _ in self._untaken:
            if is_client:
                clients.append(connection)
            else:
                connection.close()
        return clients

    def kill(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            self.process.kill()

    def dismiss(self, patience_s: float) -> None:
        """Send it no more connections and drain it; it is killed after `patience_s`."""
        self.is_serving = False
        self.channel.send("drain")
        self.channel.send("last")
        if self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(patience_s, self._give_up)

    def _give_up(self) -> None:
        _log.warning("%s has not ended in time and is ended", self.place)
        self.kill()

    @property
    def end(self) -> str:
        """How it ended, for messages."""
        if self.failure is not None:
            return f"failed: {self.failure[1]}"
        code = self.process.returncode or 0
        names = {each.value: each.name for each in signal.Signals}
        return f"ended with exit code {code}" if code >= 0 else f"was ended by {names.get(-code, f'signal {-code}')}"
