"""Process-wide settings: CPU instruction set, thread waiting, module path, forks, garbage collection, TF32.

oneDNN's instruction set and OpenMP's waiting are environment variables that a library reads once, before PyTorch runs;
child processes inherit them. What the user has set is never changed. Importing this module does not import PyTorch.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from maskjet.errors import UnsupportedError
from maskjet.host.printing import printable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a program: Ctrl-C, docker stop or systemd, and a closed terminal."""
_CPUINFO = Path("/proc/cpuinfo")
_TILE_LEAF = 0x1D  # CPUID leaf with number and size of AMX tiles, read by oneDNN
SPINNING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Variables that say how long OpenMP's threads spin."""
_SPINS = "10000"
_KEPT_BYTES = {-3: 32 << 20, -1: 64 << 20}  # malloc.h: largest M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
_PYTHONS_TURN_S, _TURN_S = 0.005, 0.0002  # switch interval of threads: default, ours
_notes: list[str] = []
_PATIENCE_S = 5  # timeout of a parallel loop that takes a millisecond
_SHARED = 2**20  # elements, enough for several threads: PyTorch uses one per 32,768
_process = os.getpid()  # that imported this, or a fork in which PyTorch works


def avoid_broken_amx(cpuinfo: Path = _CPUINFO) -> None:
    """Keep oneDNN from using AMX that a processor announces without its tile data; call before PyTorch first uses it.

    Hypervisors may pass AMX's feature bits on but end CPUID before leaf 0x1d. oneDNN, inside PyTorch, then runs AMX
    without a tile configuration: bfloat16 products crash with SIGILL, and float32 convolutions that are allowed to
    round fail with "could not create a primitive" (seen on a Xeon of the Sapphire Rapids generation in a microVM,
    PyTorch 2.15).
    """
    text = cpuinfo.read_text() if cpuinfo.exists() else ""  # on Linux alone
    leaf = re.search(r"^cpuid level\s*: (\d+)$", text, re.MULTILINE)
    if leaf is not None and int(leaf[1]) < _TILE_LEAF and re.search(r"^flags\b.* amx_tile\b", text, re.MULTILINE):
        level = os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # the highest one below AMX
        _notes.append(f"AMX is broken, oneDNN is held to {level}")


def notes() -> tuple[str, ...]:
    """Problems of this machine that were worked around, for `Model.report()`."""
    return tuple(_notes)


class _Printing(logging.Handler):
    """Log handler that prints records on stderr like errors; drops those that can't be written."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError, AttributeError):  # disk full, pipe closed, or stderr closed at start
            sys.stderr.write(f"maskjet: {printable(record.getMessage())}\n")


def print_warnings() -> None:
    """Print the library's logged warnings on stderr, with control characters escaped."""
    logger = logging.getLogger("maskjet")
    if not any(isinstance(handler, _Printing) for handler in logger.handlers):
        logger.addHandler(_Printing(logging.WARNING))


def shorten_spinning() -> None:
    """Let OpenMP's threads sleep soon after each parallel loop; call before PyTorch is loaded.

    GNU's OpenMP, part of PyTorch's wheels, spins for milliseconds at the end of each parallel loop. This is fastest on
    an idle machine; on a busy one the spinning threads take cores from working ones (`benchmarks/neighbours.md`).
    """
    if os.environ.keys().isdisjoint(SPINNING):
        os.environ["GOMP_SPINCOUNT"] = _SPINS


def suit_program() -> None:
    """Configure turns of Python's threads and imports of child processes; for programs.

    A Python thread that wants the interpreter waits for 5 ms before it asks the one that runs to stop, which with a
    thread for each of 32 videos is longer than a batch takes (`benchmarks/reach.md`).

    Python would search the current folder first in children started with -m or -c, as multiprocessing's, so that a
    json.py beside a video would run. PYTHONSAFEPATH forbids it, also to their children; an installation, PYTHONPATH and
    a copy of maskjet that was itself found in the current folder go on working.
    """
    if sys.flags.safe_path or Path(sys.path[0]).absolute() != Path(__file__).parents[2]:
        os.environ["PYTHONSAFEPATH"] = "1"
    if sys.getswitchinterval() == _PYTHONS_TURN_S:
        sys.setswitchinterval(_TURN_S)


def keep_freed_memory() -> None:
    """Keep up to 64 MB of freed memory per heap; not for services, whose memory grew with it.

    Else glibc may return the memory of each frame to the system: up to 10,000 page faults, a sixth of a CPU's time.
    """
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        with suppress(OSError, AttributeError):  # no glibc
            for parameter, size in _KEPT_BYTES.items():
                ctypes.CDLL(None).mallopt(parameter, size)


def return_freed_memory() -> None:
    """Return free memory inside heaps to the system, in milliseconds; for services.

    glibc does so at the heaps' ends only: after minutes a busy service had 160 MiB of gaps (`benchmarks/serve.md`).
    """
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def check_fork() -> None:
    """Raise UnsupportedError in a fork of a process with running PyTorch threads, where PyTorch would hang.

    A fork copies only one thread. OpenMP assumes that its thread pool was copied as well, and its first parallel loop
    in the fork waits for it for ever. OpenMP can't be queried, so a fork of this process tries a parallel loop.
    """
    import torch

    global _process
    if os.getpid() == _process or torch.get_num_threads() == 1:
        return
    if not _has_threads():
        raise UnsupportedError(
            "This process was forked from one in which PyTorch had run with several threads, which would hang here: "
            "start processes with multiprocessing's 'spawn', or call torch.set_num_threads(1) in this one."
        )
    _process = os.getpid()


def _has_threads() -> bool:
    """Whether a parallel loop finishes in a fork of this process."""
    import torch

    trial = os.fork()
    if trial == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE_S)
        torch.zeros(_SHARED, dtype=torch.float32, device="cpu").add_(1)
        os._exit(0)
    return os.waitpid(trial, 0)[1] == 0


@contextmanager
def handling_signals(
    handle: Callable[[int, FrameType | None], None],
    replaces: Callable[[Any], bool] = lambda current: current is not signal.SIG_IGN,
) -> Iterator[None]:
    """Handle terminating signals, if `replaces` accepts the current handler; only in the main thread."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: handler for number in SIGNALS if replaces(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def garbage_frozen() -> Iterator[None]:
    """Collect garbage once, then exclude live objects from later collections until the block ends; for programs.

    With PyTorch loaded a full collection stops all threads for 0.45 s, and every few thousand frames trigger one.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def garbage_left() -> Iterator[None]:
    """Disable garbage collection in all threads; for blocks of milliseconds, one at a time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def convolutions_in_tf32(is_allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in cuDNN convolutions of float32, which PyTorch allows; restored after the block."""
    import torch

    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
