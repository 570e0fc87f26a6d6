"""A load generator: HTTP clients that keep their connections, in a process that loads neither PyTorch nor maskjet.

    python -m benchmarks.serve_load < plan.json > outcome.json

In a closed loop each client sends its next request when it has its answer. In an open loop requests leave at a fixed
rate whatever the server does, and wait for a free connection if there is none; that wait counts.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MOST_BODIES = 16  # different answers kept for one image
_TIMEOUT_S = 60.0  # for one answer
_PATIENCE_S = 20.0  # for a warm-up, and for a measurement, that a slow server makes longer
_BOUNDARY = "maskjet-benchmark"


@dataclass(frozen=True)
class Plan:
    """The work of one process."""

    port: int
    """Port on 127.0.0.1."""
    path: str
    """Path that images are posted to."""
    files: Sequence[str]
    """Images, sent in rotation."""
    is_form: bool = False
    """Whether an image is sent as a part of multipart/form-data; else it is the body."""
    clients: int = 1
    """Connections."""
    first: int = 0
    """Number of the image that is sent first; each client starts at another one."""
    seconds: float = 1.0
    """Seconds that are measured; longer in a closed loop until there are two answers for each client."""
    warm_up_s: float = 0.3
    """Seconds before, with the same load; longer in a closed loop until each client has an answer."""
    rate: float | None = None
    """Requests per second of an open loop; None for a closed one."""
    count: int | None = None
    """Send this many requests instead, in a closed loop, all of them measured."""
    is_asking: bool = False
    """Whether each connection of a closed loop first asks which process it has reached, by /v1/status."""


@dataclass
class Outcome:
    """What the clients of one process saw."""

    latencies_ms: list[float] = field(default_factory=list)
    """Time of each request that was answered with 200 within the measured seconds, in milliseconds."""
    per_second: float = 0.0
    """Requests answered with 200 per measured second."""
    statuses: Counter[str] = field(default_factory=Counter)
    """All answers by HTTP status, and failures of connections by the exception's name."""
    processes: Counter[str] = field(default_factory=Counter)
    """Connections by the number of the process that they have reached."""
    late_ms: list[float] = field(default_factory=list)
    """How late each request of an open loop left, in milliseconds."""
    answers: dict[int, dict[bytes, int]] = field(default_factory=dict)
    """Different bodies by image, each with how often it came."""

    def add_answer(self, image: int, body: bytes) -> None:
        """Count the body of an answer with 200."""
        known = self.answers.setdefault(image, {})
        if body in known or len(known) < _MOST_BODIES:
            known[body] = known.get(body, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        answers = {
            image: [[body.decode(errors="replace"), times] for body, times in known.items()]
            for image, known in self.answers.items()
        }
        return {**vars(self), "answers": answers}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Outcome:
        """The outcome of another process."""
        answers = {
            int(image): {body.encode(): times for body, times in known} for image, known in fields["answers"].items()
        }
        counters = {name: Counter(fields[name]) for name in ("statuses", "processes")}
        return cls(**{**fields, **counters, "answers": answers})

    def merge(self, other: Outcome) -> None:
        """Add the outcome of another process."""
        self.latencies_ms += other.latencies_ms
        self.late_ms += other.late_ms
        self.per_second += other.per_second
        self.statuses += other.statuses
        self.processes += other.processes
        for image, known in other.answers.items():
            mine = self.answers.setdefault(image, {})
            for body, times in known.items():
                mine[body] = mine.get(body, 0) + times

    @property
    def errors(self) -> int:
        """Requests without an answer with 200."""
        return self.statuses.total() - self.statuses["200"]


def request_bytes(plan: Plan, data: bytes) -> bytes:
    """A whole request that posts an image."""
    kind = "image/jpeg"
    if plan.is_form:
        part = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n'
        data = f"{part}Content-Type: {kind}\r\n\r\n".encode() + data + f"\r\n--{_BOUNDARY}--\r\n".encode()
        kind = f"multipart/form-data; boundary={_BOUNDARY}"
    head = f"POST {plan.path} HTTP/1.1\r\nHost: 127.0.0.1:{plan.port}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


class Connection:
    """A connection that is kept, and opened again after it was closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a whole request; returns status and body."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._ask(request)
        except BaseException:
            self.close()
            raise

    async def _ask(self, request: bytes) -> tuple[int, bytes]:
        is_kept = self._streams is not None
        head = await self._send(request)
        if not head and is_kept:  # a server may close a connection that was idle
            self.close()
            head = await self._send(request)
        if not head or self._streams is None:
            raise EOFError
        status, headers = parse_head(head)
        body = await self._streams[0].readexactly(int(headers[b"content-length"]))
        if headers.get(b"connection", b"").lower() == b"close":
            self.close()
        return status, body

    async def _send(self, request: bytes) -> bytes:
        """Send a request; returns the answer's head, or nothing if the connection ended before it."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        reader, writer = self._streams
        try:
            writer.write(request)
            return await reader.readuntil(b"\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            if getattr(error, "partial", b""):
                raise
            return b""

    def close(self) -> None:
        """Close it, if it is open."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    """The status and the headers of an answer, names in lower case."""
    first, *lines = head.rstrip().split(b"\r\n")
    pairs = (line.partition(b":") for line in lines)
    return int(first.split(b" ", 2)[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


class Load:
    """Clients of one plan.

    Args:
        plan: What they do.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.outcome = plan, Outcome()
        self._requests = [request_bytes(plan, Path(file).read_bytes()) for file in plan.files]
        self._sent = 0
        self._warm: set[int] = set()  # clients that have an answer
        self._start = self._end = math.inf

    async def run(self) -> Outcome:
        """Send the requests, and wait for their answers."""
        plan, begin = self.plan, time.perf_counter()
        if plan.count is not None:
            self._start = begin
        elif plan.rate is not None:
            self._start, self._end = begin + plan.warm_up_s, begin + plan.warm_up_s + plan.seconds
        connections = [Connection(plan.port) for _ in range(plan.clients)]
        try:
            if plan.rate is not None:
                await self._run_open(connections, plan.rate)
            else:
                loops = [asyncio.ensure_future(self._loop(each, number)) for number, each in enumerate(connections)]
                if plan.count is None:
                    await self._measure(begin)
                await asyncio.gather(*loops)
        finally:
            for each in connections:
                each.close()
        spent = min(self._end, time.perf_counter()) - self._start
        self.outcome.per_second = len(self.outcome.latencies_ms) / spent
        return self.outcome

    async def _measure(self, begin: float) -> None:
        """Set the start and the end of a closed loop's measurement, when there are enough answers."""
        plan = self.plan
        await self._until(begin + plan.warm_up_s, lambda: len(self._warm) == plan.clients)
        self._start = time.perf_counter()
        await self._until(self._start + plan.seconds, lambda: len(self.outcome.latencies_ms) >= 2 * plan.clients)
        self._end = time.perf_counter()

    async def _until(self, earliest: float, is_enough: Callable[[], bool]) -> None:
        while (now := time.perf_counter()) < earliest or (not is_enough() and now < earliest + _PATIENCE_S):
            await asyncio.sleep(min(0.01, max(0.001, earliest - now)))

    async def _loop(self, connection: Connection, number: int) -> None:
        plan, image = self.plan, self.plan.first + number
        if plan.is_asking:
            _, body = await connection.ask(f"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1:{plan.port}\r\n\r\n".encode())
            self.outcome.processes[str(json.loads(body).get("process", 0))] += 1
        while time.perf_counter() < self._end and (plan.count is None or self._sent < plan.count):
            self._sent += 1
            await self._send(connection, image % len(self._requests), time.perf_counter())
            image += plan.clients
            self._warm.add(number)

    async def _run_open(self, connections: Sequence[Connection], rate: float) -> None:
        due: asyncio.Queue[tuple[int, float] | None] = asyncio.Queue()

        async def work(connection: Connection) -> None:
            while (item := await due.get()) is not None:
                await self._send(connection, *item)

        workers = [asyncio.ensure_future(work(each)) for each in connections]
        first = time.perf_counter()
        for number in range(max(1, int((self._end - first) * rate))):
            at = first + number / rate
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            now = time.perf_counter()
            self.outcome.late_ms.append(1000 * (now - at))
            due.put_nowait(((self.plan.first + number) % len(self._requests), now))
        for _ in workers:
            due.put_nowait(None)
        await asyncio.gather(*workers)

    async def _send(self, connection: Connection, image: int, since: float) -> None:
        """Send one request that was due at `since`, and count its answer."""
        try:
            status, body = await connection.ask(self._requests[image])
        except (OSError, EOFError, TimeoutError, ValueError, KeyError) as error:
            self.outcome.statuses[type(error).__name__] += 1
            await asyncio.sleep(0.05)
            return
        now = time.perf_counter()
        self.outcome.statuses[str(status)] += 1
        if status != 200:
            await asyncio.sleep(0.01)
            return
        self.outcome.add_answer(image, body)
        # An open loop's by when they were sent, so that slow ones at the end are not left out.
        if self._start <= (now if self.plan.rate is None else since) and (self.plan.rate or now <= self._end):
            self.outcome.latencies_ms.append(1000 * (now - since))


def run_here(plan: Plan) -> Outcome:
    """Send the load from this process, with uvloop where it is installed."""
    loops: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        loops = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=loops) as runner:
        return runner.run(Load(plan).run())


def write_all(text: str) -> None:
    """Write all to stdout, even where its reader has made it non-blocking and is slow."""
    os.set_blocking(sys.stdout.fileno(), True)
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    write_all(json.dumps(run_here(Plan(**json.load(sys.stdin))).as_dict(), allow_nan=False))
