"""Memory that the processes of a service share: who serves, who is alive, and how many connections each has."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

_ALIVE_S = 1.0  # a process whose event loop has not turned for longer gets no connections


class Row(ctypes.Structure):
    """What one process tells the others. Only that process writes it while it runs, so there is no lock."""

    _fields_ = (
        ("is_ready", ctypes.c_int64),  # 1 once its models have answered frames
        ("turned_ns", ctypes.c_int64),  # when its event loop has turned last; 0 if it accepts no connections
        ("connections", ctypes.c_int64),  # open ones, of clients
        ("is_full", ctypes.c_int64),  # 1 while it can take no connection
        ("port", ctypes.c_int64),  # of 127.0.0.1, where the other processes reach it
    )

    @property
    def is_alive(self) -> bool:
        """Whether the process accepts connections and does not hang."""
        return self.still_s <= _ALIVE_S

    @property
    def still_s(self) -> float:
        """Seconds since its event loop has turned."""
        return (time.monotonic_ns() - self.turned_ns) / 1e9  # one clock for all processes

    def turn(self) -> None:
        """Note that the event loop turns."""
        self.turned_ns = time.monotonic_ns()


class ProcessTable:
    """A row for each process of a service, by its number; in a new file, or in that of an inherited descriptor."""

    def __init__(self, count: int, descriptor: int | None = None) -> None:
        size = ctypes.sizeof(Row) * (count + 1)
        if descriptor is None:
            descriptor = os.memfd_create("maskjet-processes")
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        *self.rows, self._service = (Row * (count + 1)).from_buffer(mmap.mmap(descriptor, size))

    @property
    def were_all_ready(self) -> bool:
        """Whether all processes have been ready at once; from then on the service is ready."""
        return bool(self._service.is_ready)

    def note_all_ready(self) -> None:
        """From now on all were ready."""
        self._service.is_ready = 1

    def clear(self, number: int) -> None:
        """Empty the row of a process that has ended."""
        ctypes.memset(ctypes.addressof(self.rows[number]), 0, ctypes.sizeof(Row))

    def count_connections(self) -> int:
        """Open connections of all processes."""
        return sum(row.connections for row in self.rows)

    def has_fewest(self, number: int) -> bool:
        """Whether no other process that accepts connections has fewer than this one."""
        mine = self.rows[number].connections
        return all(row.connections >= mine or not row.is_alive or row.is_full for row in self.rows)
