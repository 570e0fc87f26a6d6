"""Processes that a program starts for part of its work, and speaks with.

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

_PATIENCE_S = 5.0  # until a process that should end is killed


def start(
    module: str, *descriptors: int, variables: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that calls `main` of a module with its end of a connection, a descriptor, and with others.

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
    """Wait until a process has ended, whose connection is closed, or else kill it; returns its exit code."""
    try:
        return process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def tell(code: int) -> str:
    """How a process ended, for messages."""
    names = {each.value: each.name for each in signal.Signals}
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {names.get(-code, f'signal {-code}')}"


@dataclass(eq=False)
class Child:
    """A process and the connection to it; messages are JSON."""

    process: subprocess.Popen[bytes]
    connection: Connection

    @classmethod
    def start(cls, module: str, orders: Any, *descriptors: int, variables: Mapping[str, str]) -> Child:
        """Start a process, as `start`, and send it its orders; raises OSError if there can't be one."""
        child = cls(*start(module, *descriptors, variables=variables))
        child.send(orders)
        return child

    def send(self, message: Any) -> None:
        """Send a message; one to a dead process is lost, as `receive` tells that it has died."""
        with suppress(OSError):
            self.connection.send_bytes(json.dumps(message).encode())

    def end(self) -> str:
        """Wait until the process ends, or kill it; returns how it ended, for messages."""
        self.connection.close()
        return tell(end(self.process))


def receive(children: Iterable[Child], patience_s: float) -> Iterator[tuple[Child, Any]]:
    """Wait for messages; yields those that have come, each with its sender, and None for one that has died."""
    senders: dict[Any, Child] = {child.connection: child for child in children}
    for connection in wait(list(senders), patience_s):
        child = senders[connection]
        try:
            yield child, json.loads(child.connection.recv_bytes())
        except (EOFError, OSError):
            yield child, None
