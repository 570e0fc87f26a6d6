"""Between the process that listens and those that serve: what a process is to do, messages, and connections.

A message is a list of texts and numbers. The process that listens sends ("take", "client") with a connection of a
client and ("take", "sibling") with one of another process; ("whole",) once all processes are ready; ("drain",) to end,
and ("last",) behind the last connection. It receives ("serving",), ("ready",), ("taken",) and ("closed",) for each
connection, ("reach", number) with a connection for another process, and ("failed", kind, text). `Taker` is its view of
a process.
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
_MOST_UNTAKEN = 64  # connections on their way to one process
_log = logging.getLogger("maskjet.serve")


@dataclass(frozen=True)
class Job:
    """What a process is to do; it reads it from its standard input, as it has the token."""

    number: int
    """Position among the processes, from 0; the first one watches the sources."""
    count: int
    """Processes of the service."""
    device: str
    """Its device, as the process that listens names it."""
    starts: int
    """How many times it was started before."""
    is_whole: bool
    """Whether all processes have been ready, so that this one need not wait for others."""
    models: Mapping[str, str]
    """What to load, by name."""
    weights: str | None
    """Checkpoint of the one model, if it has a name."""
    config: Mapping[str, Any]
    """Fields of `EngineConfig`."""
    settings: Mapping[str, Any] = field(repr=False)
    """Fields of `Settings`."""

    def to_file(self) -> BinaryIO:
        """A file in memory to be read by `from_file`."""
        file = os.fdopen(os.memfd_create("maskjet-job"), "w+b")
        file.write(json.dumps(asdict(self)).encode())
        file.seek(0)
        return file

    @classmethod
    def from_file(cls, file: BinaryIO) -> Job:
        """Read what `to_file` has written."""
        return cls(**json.load(file))


class Channel:
    """One end of the socket between two processes, in an event loop.

    Sending never blocks: messages that find no room wait. There are few, as a process that does not take its
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
        """Two ends of a socket that keeps messages apart."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(self, receive: Callable[[list[Any], socket.socket | None], None]) -> None:
        """Give each message, with its connection, to a function, from now on."""
        self._receive = receive
        asyncio.get_running_loop().add_reader(self._end, self.read)

    def send(self, *message: Any, passed: socket.socket | None = None) -> None:
        """Send a message, with a socket, which is closed here; an end that is gone is not noticed."""
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
        """Read all messages that are here; not to be called before `start`."""
        assert self._receive is not None
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(
                    self._end, _MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return
            except ConnectionResetError:  # told once if the other end closed with messages unread; its own are here
                continue
            if not data:
                asyncio.get_running_loop().remove_reader(self._end)
                return
            passed = socket.socket(fileno=descriptors[0]) if descriptors else None
            self._receive(json.loads(data), passed)

    def close(self) -> None:
        """Close this end, and the sockets that wait to be passed on."""
        if self._retry is not None:
            self._retry.cancel()
        with suppress(RuntimeError):  # there is no event loop any more
            asyncio.get_running_loop().remove_reader(self._end)
        for _, passed in self._waiting:
            if passed is not None:
                passed.close()
        self._waiting.clear()
        self._end.close()


class Taker:
    """A process that serves, as the one that listens sees it.

    Attributes:
        open: Connections of clients that it has or will have.
        is_serving: Whether it takes connections.
        is_ready: Whether its models have answered frames.
        failure: Kind and text of what it could not go on with.
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
        """Whether it may be handed a connection now."""
        return len(self._untaken) < _MOST_UNTAKEN

    def waits_s(self, now: float) -> float:
        """Seconds that the oldest connection has waited to be taken."""
        return now - self._untaken[0][2] if self._untaken else 0.0

    def hand(self, connection: socket.socket, *, is_client: bool) -> None:
        """Hand a connection on; it is kept until a copy of it has been taken.

        Raises:
            OSError: There is no descriptor for the copy.
        """
        copy = connection.dup()
        self.handed_at = time.monotonic()
        self._untaken.append((connection, is_client, self.handed_at))
        self.open += is_client
        self.channel.send("take", "client" if is_client else "sibling", passed=copy)

    def taken(self) -> None:
        """Let go of the oldest connection that was handed on."""
        self._untaken.popleft()[0].close()

    def close(self) -> list[socket.socket]:
        """End what is left of a process that has ended; returns the clients' connections that it had not taken."""
        self.channel.read()  # what it said last
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
        """End it at once."""
        with suppress(ProcessLookupError):
            self.process.kill()

    def dismiss(self, patience_s: float) -> None:
        """Let it answer what is under way, and end within a bounded time; nothing is handed on to it any more."""
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
        """How it ended."""
        if self.failure is not None:
            return f"failed: {self.failure[1]}"
        code = self.process.returncode or 0
        names = {each.value: each.name for each in signal.Signals}
        return f"ended with exit code {code}" if code >= 0 else f"was ended by {names.get(-code, f'signal {-code}')}"
