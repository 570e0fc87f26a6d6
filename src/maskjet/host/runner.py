"""Child processes that do part of a program's work, connected by sockets.

A service and a job have a `Child` per place, which they start again if it dies; others have one process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

_PATIENCE_S = 5.0  # time for a process to exit before it is killed


def start(
    module: str, *descriptors: int, variables: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that calls `main` of a module with the descriptor of a connection, and further ones.

    It imports from where this process does. What it prints goes to stderr, since stdout is for results. A terminal's
    signals don't reach it: it should end when the connection is closed.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        given = [theirs.fileno(), *descriptors]
        code = f"import sys; sys.path[:] = {sys.path}; from {module} import main; main(*{given})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **(variables or {})},
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )
    return process, Connection(ours.detach())


def end(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process to exit after its connection was closed, or kill it; returns the exit code."""
    try:
        return process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def tell(code: int) -> str:
    """Describe how a process ended, for messages."""
    names = {each.value: each.name for each in signal.Signals}
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {names.get(-code, f'signal {-code}')}"


@dataclass(eq=False)
class Child:
    """A child process and the connection to it, for JSON messages."""

    process: subprocess.Popen[bytes]
    connection: Connection

    @classmethod
    def start(cls, module: str, orders: Any, *descriptors: int, variables: Mapping[str, str]) -> Child:
        """Start a process, see `start`, and send its first message; raises OSError if that fails."""
        child = cls(*start(module, *descriptors, variables=variables))
        child.send(orders)
        return child

    def send(self, message: Any) -> None:
        """Send a message; silently lost if the process is dead, which `receive` reports."""
        with suppress(OSError):
            self.connection.send_bytes(json.dumps(message).encode())

    def end(self) -> str:
        """Close the connection, and wait for the process or kill it; returns how it ended, for messages."""
        self.connection.close()
        return tell(end(self.process))


def receive(children: Iterable[Child], patience_s: float) -> Iterator[tuple[Child, Any]]:
    """Wait for messages; yields (sender, message) pairs, with None from a child that has died."""
    senders: dict[Any, Child] = {child.connection: child for child in children}
    for connection in wait(list(senders), patience_s):
        child = senders[connection]
        try:
            yield child, json.loads(child.connection.recv_bytes())
        except (EOFError, OSError):
            yield child, None
