"""Worker processes that compile Triton kernels without a GPU; threads would wait for the interpreter lock.

What they compile is in Triton's cache on disk, where the process that asked reads it. They are a convenience: where
they fail, the process that asked compiles itself, and raises its own errors.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import importlib.util
import json
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from maskjet.errors import first_line
from maskjet.host import cache, runner

_IDLE_S = 120.0  # idle time after which the processes exit
_NICENESS = 10
_PATIENCE_S = 300.0  # longest wait for one batch's kernels
_MARK = "maskjet-"  # prefix of marker files in Triton's cache, one per compiled kernel
_describing = threading.Lock()
_log = logging.getLogger("maskjet")


class Specialization(NamedTuple):
    """A kernel specialised on argument types, constants and options; input of Triton's `JITFunction.preload`."""

    module: str
    name: str
    data: str
    """Specialisation as JSON, in the form that `JITFunction.preload` reads."""
    source: str
    """Digest of the source of the kernel and all functions it calls."""
    length: int
    """Length of the source in characters; longer kernels are compiled first."""


class Compilers:
    """The compiler processes: started on demand or early, ended when idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def start_early(self) -> None:
        """Start the processes early if the cache holds no kernels yet."""
        if importlib.util.find_spec("triton") is None:
            return
        choose_cache()
        if not any(_folder().glob(f"{_MARK}*")):
            with self._lock, suppress(OSError):
                self._start()

    def compile(self, kernels: Sequence[Specialization]) -> None:
        """Compile the kernels missing from Triton's cache; waits until they are in it."""
        if not _list_missing(kernels):
            return
        with self._lock:
            try:
                with _locked():
                    missing = _list_missing(kernels)  # another process may have compiled them meanwhile
                    if missing:
                        self._ask(missing.values())
                    for mark in missing:
                        mark.touch()
            except (OSError, EOFError, RuntimeError) as error:
                _log.info("kernels are compiled by threads, as the processes for it failed: %s", error or "they ended")
                self._end()

    def _ask(self, kernels: Iterable[Specialization]) -> None:
        """Have the processes compile kernels; raises RuntimeError if they fail, OSError or EOFError if they exit."""
        connection = self._start()
        longest_first = sorted(kernels, key=lambda kernel: -kernel.length)
        connection.send((_target(), [kernel[:3] for kernel in longest_first]))
        failure = connection.recv() if connection.poll(_PATIENCE_S) else f"no answer in {_PATIENCE_S:.0f} s"
        if failure is not None:
            raise RuntimeError(failure)

    def _start(self) -> Connection:
        """Start the processes unless they run; returns their connection. The caller holds the lock."""
        if self._running is not None and self._running[0].poll() is not None:
            self._end()
        if self._running is None:
            self._running = runner.start(__name__, variables={"CUDA_VISIBLE_DEVICES": ""})
            # At normal priority they slowed OpenMP's threads elsewhere: loading a checkpoint took 4.4 s, not 0.1.
            os.setpriority(os.PRIO_PROCESS, self._running[0].pid, _NICENESS)
        return self._running[1]

    def _end(self) -> None:
        """Kill the processes at once, even while they compile."""
        if self._running is not None:
            process, connection = self._running
            self._running = None
            connection.close()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


compilers = Compilers()
"""This process's compiler processes."""
atexit.register(compilers._end)
os.register_at_fork(after_in_child=compilers.__init__)  # type: ignore[misc] # they are the parent's


@functools.cache
def choose_cache() -> None:
    """Set Triton's cache folder to one in `cache.folder()`, unless TRITON_CACHE_DIR is set.

    Triton stops where it can't write there. Then this process and its children have a copy, which goes with it.
    """
    if "TRITON_CACHE_DIR" in os.environ:
        return
    folder = cache.folder()
    kept = None if folder is None else folder / "triton"
    with suppress(OSError):
        if kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
    if kept is None or not os.access(kept, os.W_OK | os.X_OK):
        own = Path(tempfile.mkdtemp(prefix="maskjet-triton-"))
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        with suppress(OSError, shutil.Error):
            shutil.copytree(kept or own, own, dirs_exist_ok=True)
        kept = own
    os.environ["TRITON_CACHE_DIR"] = str(kept)


def settle_keys(kernel: Any) -> None:
    """Compute the cache keys of a kernel and all functions it calls, in an order fixed by the kernel alone.

    A function's key in Triton's cache names the globals that its callees use only where their keys are known before.
    So it depended on which kernel came first, and processes and starts missed what others had compiled.
    """
    from triton.runtime.jit import JITCallable

    if not isinstance(kernel, JITCallable) or kernel.hash is not None:
        return
    names, given = kernel.fn.__code__.co_names, kernel.fn.__globals__
    called = [given.get(name) for name in names]
    for each in called:  # the list grows by members of modules, such as tl.math.exp
        if isinstance(each, ModuleType):
            called += [vars(each)[name] for name in names if name in vars(each)]
        elif each is not kernel:
            settle_keys(each)
    kernel.cache_key  # noqa: B018 (it is kept)


@contextmanager
def specializing(found: list[Specialization]) -> Iterator[None]:
    """Collect the specialisations that Triton would compile in this thread, without compiling them."""
    import triton

    thread, before = threading.get_ident(), triton.knobs.runtime.jit_cache_hook

    def describe(**given: Any) -> bool:
        if threading.get_ident() != thread:
            return bool(before and before(**given))
        kernel, data = given["fn"].jit_function, given["compile"]["specialization_data"]
        found.append(Specialization(given["fn"].module, given["fn"].name, data, kernel.cache_key, len(kernel.src)))
        return True

    with _describing:
        triton.knobs.runtime.jit_cache_hook = describe
        try:
            yield
        finally:
            triton.knobs.runtime.jit_cache_hook = before


class _Driver:
    """Stand-in for Triton's GPU driver, for compiling without a GPU."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        """The compilation target, Triton's `GPUTarget`."""
        return self._target

    def get_current_device(self) -> int:
        """Device index of compiled code; always 0."""
        return 0

    def get_current_stream(self, _device: int) -> int:
        """Stream handle; always 0, as nothing is launched."""
        return 0


def main(descriptor: int) -> None:
    """Compiler process: serve compile requests over an inherited socket until it closes or is idle."""
    import triton
    from triton.backends.compiler import GPUTarget

    warnings.simplefilter("ignore")  # Python warns of forking beside threads; they hold no lock that compiling takes
    connection = Connection(descriptor)
    pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("fork"))
    with suppress(EOFError, OSError), pool:
        while connection.poll(_IDLE_S):
            target, kernels = connection.recv()
            triton.runtime.driver.set_active(_Driver(GPUTarget(*target)))
            for module in {module for module, *_ in kernels}:
                importlib.import_module(module)  # imported once, before the workers fork
            failure = None
            try:
                for each in [pool.submit(_compile, *kernel) for kernel in kernels]:
                    each.result()
            except Exception as error:
                failure = f"{type(error).__name__}: {first_line(error)}"
            connection.send(failure)


def _compile(module: str, name: str, data: str) -> None:
    kernel = getattr(importlib.import_module(module), name)
    settle_keys(kernel)
    compiled = kernel.preload(data)
    with suppress(Exception):  # up to Triton 3.6 each kernel has a launcher in C, for which gcc takes 0.4 s
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(compiled.src, compiled.metadata)


def _target() -> tuple[str, int, int]:
    """The current GPU as arguments of Triton's `GPUTarget`."""
    import triton

    target = triton.runtime.driver.active.get_current_target()
    return target.backend, target.arch, target.warp_size


def _list_missing(kernels: Sequence[Specialization]) -> dict[Path, Specialization]:
    """The kernels without a marker file in the cache, keyed by the path of that file."""
    import triton

    missing = {}
    for kernel in kernels:
        described = json.dumps([triton.__version__, *kernel[:4]]).encode()
        mark = _folder() / f"{_MARK}{hashlib.sha256(described).hexdigest()[:32]}"
        if not mark.exists():
            missing[mark] = kernel
    return missing


@contextmanager
def _locked() -> Iterator[None]:
    """Hold a file lock, so that several worker processes compile a kernel only once."""
    _folder().mkdir(parents=True, exist_ok=True)
    with (_folder() / "maskjet.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _folder() -> Path:
    """Triton's cache folder."""
    return Path(os.environ["TRITON_CACHE_DIR"])
