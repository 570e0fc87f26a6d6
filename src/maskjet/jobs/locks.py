"""Locking the output folder of a job: with flock, or in an object store with a lease."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from maskjet.errors import OutputError, first_line
from maskjet.files import naming
from maskjet.jobs.folders import Folder, LocalFolder

LOCK = "job.lock"
BEAT_S = 5.0
"""Interval at which a lease is renewed."""
_MISSED = 6  # renewals, after which a lease has expired
_SETTLE_S = 1.0  # until a new lease is read back, in case two drivers start at once
_log = logging.getLogger("maskjet")


@contextmanager
def locked(folder: Folder) -> Iterator[Callable[[], None]]:
    """Lock the output folder of a job, and make it; yields a function that raises OutputError once the lock is lost.

    A local lock ends with the process, however that ends. In a store it is a lease, which its driver renews every 5
    seconds; it expires after 30 without renewal, or at once if its driver was a process of this machine that has ended.

    Raises:
        OutputError: Another job has it, or it can't be written to.
    """
    if isinstance(folder, LocalFolder):
        with _file_locked(folder.path):
            yield lambda: None
    else:
        with _Lease(folder) as lease:
            yield lease.check


@contextmanager
def _file_locked(folder: Path) -> Iterator[None]:
    path = folder / LOCK
    with naming(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with naming(str(folder)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with path.open("rb") as file:
                    raise _in_use(str(folder), file.read(4096)) from None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        yield
    finally:
        os.close(descriptor)


class _Lease:
    """A lease on a folder in a store: an object that its driver rewrites while it lives.

    Stores have no conditional writes in common, so a driver that was paused between reading the lease and renewing it
    may overwrite another's. Then both work until one finds the other's lease at its next renewal, and ends. Meanwhile
    no part can be wrong, as each appears complete and has the same content by whichever; one may stop the other early.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._owner = {
            "id": uuid.uuid4().hex,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "machine": _this_machine(),
        }
        self._error: OutputError | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="maskjet-lease", daemon=True)

    def __enter__(self) -> _Lease:
        self._wait_for_others()
        self._write(0)
        time.sleep(_SETTLE_S)
        self._check_owner()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        with suppress(OutputError):  # the lease expires by itself
            if self._error is None:
                self._folder.remove(LOCK)

    def check(self) -> None:
        """Raise OutputError if another driver has taken the lease."""
        if self._error is not None:
            raise self._error

    def _wait_for_others(self) -> None:
        """Return once there is no lease, or it has expired."""
        first = self._folder.read(LOCK)
        deadline = time.monotonic() + _MISSED * BEAT_S
        while first and not _is_gone(first) and time.monotonic() < deadline:
            time.sleep(_SETTLE_S)
            now = self._folder.read(LOCK)
            if not now:
                return
            if now != first:
                raise _in_use(self._folder.name(""), now)

    def _check_owner(self) -> None:
        now = self._folder.read(LOCK)
        if now and _facts(now).get("id") != self._owner["id"]:
            raise _in_use(self._folder.name(""), now)

    def _write(self, beat: int) -> None:
        self._folder.write(LOCK, json.dumps({**self._owner, "beat": beat}).encode())

    def _renew(self) -> None:
        beat = 0
        while not self._is_over.wait(BEAT_S):
            beat += 1
            try:
                self._check_owner()
            except OutputError as error:
                self._error = error
                return
            try:
                self._write(beat)
            except OutputError as error:  # the store may answer again before the lease expires
                _log.warning("%s", first_line(error))


def _facts(content: bytes) -> dict[str, Any]:
    """Parse the owner that a lock states."""
    with suppress(ValueError):
        facts = json.loads(content)
        if isinstance(facts, dict):
            return facts
    return {}


def _is_gone(content: bytes) -> bool:
    """Whether a lease's driver was a process of this machine that has ended."""
    owner = _facts(content)
    if owner.get("machine") != _this_machine() or not isinstance(owner.get("pid"), int):
        return False
    return not Path("/proc", str(owner["pid"])).exists()


def _this_machine() -> str:
    """Identity of the boot and the PID namespace, within which process ids can be compared."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    return uuid.uuid4().hex  # equal to no other


def _in_use(folder: str, content: bytes) -> OutputError:
    owner = "another process"
    with suppress(KeyError, TypeError, ValueError):
        facts = _facts(content)
        owner = f"process {int(facts['pid'])} on {str(facts['host'])[:100]!r}"
    return OutputError(
        f"out must not be in use, {folder!r} is: {owner} works on it. Wait for it, or choose another folder."
    )
