"""Processes of the service's benchmark: servers on free ports of 127.0.0.1, and load generators."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from benchmarks.serve_load import Outcome, Plan
from maskjet.errors import UnsupportedError

_START_S = 300.0  # a GPU compiles first
_END_S = 20.0


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    name: str
    """Name in tables."""
    port: int
    """Its port on 127.0.0.1."""
    pid: int
    """Number of its process."""
    path: str
    """Path that images are posted to."""
    is_form: bool = False
    """Whether images are sent as parts of multipart/form-data."""

    def plan(self, files: Sequence[str], **choices: Any) -> Plan:
        """A plan of load for it."""
        return Plan(port=self.port, path=self.path, is_form=self.is_form, files=list(files), **choices)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def started(
    name: str,
    module: Sequence[str],
    *,
    path: str,
    ready: str,
    is_form: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a server until the block ends.

    Args:
        name: Name in tables.
        module: Module and arguments; the port is appended.
        path: Path that images are posted to.
        ready: Path that answers with a status below 500 once it is ready; ours also says how large batches may be.
        is_form: Whether images are sent as parts of a form.
        variables: Environment variables for it, besides those of this process.

    Raises:
        UnsupportedError: It does not start; the message has its last line.
    """
    port = free_port()
    command = [sys.executable, "-m", *module, "--port", str(port)]
    with TemporaryFile() as log:
        environment = {**os.environ, **(variables or {})}
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
        try:
            _wait(process, port, ready, lambda: _last_line(log), name)
            yield Server(name, port, process.pid, path, is_form)
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], port: int, ready: str, said: Any, name: str) -> None:
    deadline = time.monotonic() + _START_S
    while not all(_answers(port, ready) for _ in range(8)):  # of several processes each says what it can
        if process.poll() is not None:
            raise UnsupportedError(f"{name} ended with code {process.returncode}: {said()}")
        if time.monotonic() > deadline:
            raise UnsupportedError(f"{name} was not ready after {_START_S:g} s: {said()}")
        time.sleep(0.2)


def _last_line(log: Any) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def _answers(port: int, path: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            reply = b"".join(iter(lambda: connection.recv(4096), b""))
    except OSError:
        return False
    status = reply.split(b" ", 2)
    return b"ready, with batches of" not in reply and len(status) > 1 and status[1].isdigit() and int(status[1]) < 500


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that it has started, which are of its session."""
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
    for number in (15, 9):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        time.sleep(0.5)
    process.wait()


def run_load(plan: Plan, processes: int = 1) -> Outcome:
    """Send a load from processes of their own, which share its clients and its rate."""
    processes = min(processes, plan.clients)
    outcome = Outcome()
    with ExitStack() as stack:
        children = []
        for number in range(processes):
            part = replace(
                plan,
                clients=plan.clients // processes + (number < plan.clients % processes),
                first=plan.first + number * max(1, len(plan.files) // processes),
                rate=None if plan.rate is None else plan.rate / processes,
            )
            said = stack.enter_context(TemporaryFile())  # not a pipe, which would have to be read meanwhile
            child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.serve_load"], stdin=subprocess.PIPE, stdout=said
            )
            assert child.stdin is not None
            child.stdin.write(json.dumps(asdict(part)).encode())
            child.stdin.close()
            children.append((child, said))
        for child, said in children:
            if code := child.wait():
                raise UnsupportedError(f"a load generator ended with code {code}.")
            said.seek(0)
            outcome.merge(Outcome.from_dict(json.loads(said.read())))
    return outcome


def run_ceiling(files: Sequence[Path], arguments: Sequence[str], seconds: float) -> dict[str, Any]:
    """Measure the model without a network between, in a process of its own; see `serve_servers.ceiling`."""
    command = [sys.executable, "-m", "benchmarks.serve_servers", "ceiling", *arguments, "--seconds", str(seconds)]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
    if done.returncode:
        raise UnsupportedError(f"the ceiling can't be measured: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
