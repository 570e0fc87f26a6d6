"""Processes that a program starts for part of its work, and speaks with."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection

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
