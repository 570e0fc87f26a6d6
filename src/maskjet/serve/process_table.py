"""Shared memory of worker processes: readiness, liveness and connection count of each."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

_ALIVE_S = 1.0  # seconds without a heartbeat after which a worker gets no connections


class Row(ctypes.Structure):
    """Status of one worker, shared with the others; written only by that worker, so without a lock."""

    _fields_ = (
        ("is_ready", ctypes.c_int64),  # 1 once its models have answered frames
        ("turned_ns", ctypes.c_int64),  # last heartbeat of its event loop; 0 if it accepts no connections
        ("connections", ctypes.c_int64),  # open client connections
        ("is_full", ctypes.c_int64),  # 1 while it is out of descriptors
        ("port", ctypes.c_int64),  # port on 127.0.0.1 for requests of other workers
    )

    @property
    def is_alive(self) -> bool:
        """Whether the process accepts connections and does not hang."""
        return self.still_s <= _ALIVE_S

    @property
    def still_s(self) -> float:
        """Seconds since the last heartbeat of the worker's event loop."""
        return (time.monotonic_ns() - self.turned_ns) / 1e9  # the monotonic clock is system-wide

    def turn(self) -> None:
        """Record a heartbeat of the event loop."""
        self.turned_ns = time.monotonic_ns()


class ProcessTable:
    """Shared table with a row per worker, in a new memory file or that of an inherited descriptor."""

    def __init__(self, count: int, descriptor: int | None = None) -> None:
        size = ctypes.sizeof(Row) * (count + 1)
        if descriptor is None:
            descriptor = os.memfd_create("maskjet-processes")
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        *self.rows, self._service = (Row * (count + 1)).from_buffer(mmap.mmap(descriptor, size))

    @property
    def were_all_ready(self) -> bool:
        """Whether all workers were ready at the same time once; from then on the service is ready."""
        return bool(self._service.is_ready)

    def note_all_ready(self) -> None:
        """Record that all workers are ready."""
        self._service.is_ready = 1

    def clear(self, number: int) -> None:
        """Reset the row of an ended worker."""
        ctypes.memset(ctypes.addressof(self.rows[number]), 0, ctypes.sizeof(Row))

    def count_connections(self) -> int:
        """Number of open connections of all workers."""
        return sum(row.connections for row in self.rows)

    def has_fewest(self, number: int) -> bool:
        """Whether no other accepting worker has fewer connections than this one."""
        mine = self.rows[number].connections
        return all(row.connections >= mine or not row.is_alive or row.is_full for row in self.rows)
