"""Choose, compile and launch Triton's kernels.

Triton is imported when a kernel is first needed, not with maskjet.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch

from maskjet.errors import first_line
from maskjet.host import cache
from maskjet.ops.compilers import Specialization, choose_cache, compilers, settle_keys, specializing
from maskjet.ops.record import Op, Variant, name_of

capturing = threading.Lock()
"""Held while a graph is captured, and while a video decoder is made or freed. To make a decoder, CUDA waits for all
streams of the context, which ends captures with cudaErrorStreamCaptureInvalidated, and may hang. PyTorch captures one
graph at a time anyway."""

_loading = threading.Lock()
"""Held while Triton loads compiled code. In 3.6 a kernel is launched by a Python module made for it, and all of these
have one name: of two threads that load theirs at once, one may get the other's."""

_compiling = threading.Lock()
"""Held by `compiling_ahead` while it compiles."""

_ahead = threading.local()
"""Thread-local; `jobs` holds the compilations collected by `compiling_ahead`."""

MULTIPROCESSORS = 132
"""Multiprocessors of an H100 or H200, on which launch shapes were timed."""
_HOPPERS_SHARED = 227 * 1024
_CROWDING = range(1901, 4001)
"""Rows with which layers and attention fill a GPU once or twice. Programs that begin early then crowd onto the
multiprocessors that have room: rf-detr-large and seg-xlarge take 3 % longer, four images of seg-nano 4 %. With fewer
rows, and with more, beginning early saves up to 8 % (H200, benchmarks/network.md)."""
_OLDEST = (7, 5)  # T4; Triton's own limit
_OLDEST_WITH_BFLOAT16 = (8, 0)


def make_op(
    public: Callable[..., Any],
    reference: Variant,
    *,
    dtypes: tuple[torch.dtype, ...],
    cpu: Variant | None = None,
    allocate: str | None = None,
) -> Op:
    """Make the record of an op whose Triton implementation has its name and lies in its package's `triton.py`.

    That module, and with it Triton, is imported on the first call. `dtypes` are the types of the op's first tensor that
    the implementation takes; `allocate` names the function that makes an `out` for it.
    """

    def first_called(name: str) -> Callable[..., Any]:
        @lru_cache
        def load() -> Callable[..., Any]:
            loaded: Callable[..., Any] = getattr(importlib.import_module(f"{public.__module__}.triton"), name)
            return loaded

        return lambda *args, **kwargs: load()(*args, **kwargs)

    def refuse(sample: torch.Tensor) -> str | None:
        if sample.dtype not in dtypes:
            known = ", ".join(map(name_of, dtypes))
            return f"it takes {known}, got {name_of(sample.dtype)}"
        return why_not(sample.device, sample.dtype)

    name = public.__name__
    triton = Variant(first_called(name), refuse, None if allocate is None else first_called(allocate))
    variants = {"triton": triton, **({} if cpu is None else {"cpu": cpu}), "reference": reference}
    return Op(name, public, variants)


@lru_cache
def why_not(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why Triton can't run on this device and dtype; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; PyTorch's CUDA build for Linux brings it"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if device.type != "cuda" or torch.version.cuda is None:
        return f"it needs tensors on an NVIDIA GPU, got {device}"
    capability = torch.cuda.get_device_capability(device)
    oldest = _OLDEST_WITH_BFLOAT16 if dtype == torch.bfloat16 else _OLDEST
    if capability < oldest:
        return "{} needs compute capability {}.{}, got {}.{}".format(name_of(dtype), *oldest, *capability)
    return _try_to_compile(device)


def _try_to_compile(device: torch.device) -> str | None:
    """Compile and run a one-line kernel, to find a missing C compiler or an old driver before the first frame."""
    from maskjet.ops.trial_kernel import fill_kernel

    choose_cache()
    try:
        with torch.cuda.device(device):
            value = torch.zeros(1, dtype=torch.int32, device=device)
            fill_kernel[(1,)](value, 7, enable_fp_fusion=True)  # without the option Triton 3.9 warns
            works = int(value) == 7
    except Exception as error:  # Triton, ptxas, the C compiler and the driver raise many types
        return f"Triton can't compile here: {type(error).__name__}: {first_line(error)}"
    return None if works else "a kernel compiled by Triton gave a wrong result here"


@lru_cache
def has_dependent_launches(device: torch.device) -> bool:
    """Whether a kernel may begin before the previous one has ended (dependent launch): Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@lru_cache
def has_bulk_copies(device: torch.device) -> bool:
    """Whether a GPU has a tensor memory accelerator and much shared memory, as Hopper and large Blackwells do.

    Triton's interpreter serves such copies, too.
    """
    return device.type != "cuda" or (has_dependent_launches(device) and shared_memory(device) >= _HOPPERS_SHARED)


@lru_cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have: 64 KiB on a T4, 99 KiB on an L4, 227 KiB on an H100."""
    if device.type != "cuda":
        return _HOPPERS_SHARED
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


def fitting_stages(most: int, stage_bytes: int, device: torch.device) -> int:
    """Count the pipeline stages that fit into a program's shared memory, from 1 to `most`."""
    return max(min(most, shared_memory(device) // stage_bytes), 1)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """A context that makes a device current, so that kernels launch there.

    Without it, `torch.cuda.stream` of another GPU's stream makes the first GPU current when it ends, and with it a CUDA
    context of half a gigabyte.
    """
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)


class Launcher:
    """Launches a kernel, specialised on argument types and constants only.

    To specialise code, Triton inspects the environment and every argument at each launch. This class does so once per
    set of types: a launch costs the host 13.8 µs instead of 22.6 (H200, benchmarks/tuning_h200.json).

    Args:
        kernel: Made by `triton.jit` with `do_not_specialize` for all its arguments, except pointers that are always
            aligned to 16 bytes.
        options: Triton's launch options, such as `num_warps`. Products and sums are fused by default, as Triton itself
            does up to 3.9; without the option 3.9 warns, and 3.10 will not fuse.
    """

    def __init__(self, kernel: Any, **options: Any) -> None:
        import triton

        choose_cache()
        self._kernel, self._options = kernel, {"enable_fp_fusion": True, **options}
        self._is_interpreted = not isinstance(kernel, triton.JITFunction)
        if not self._is_interpreted:
            settle_keys(kernel)
        self._compiled: dict[Hashable, Any] = {}
        self._loaded: dict[Hashable, Any] = {}

    def __call__(self, grid: tuple[int, int, int], types: Hashable, *args: Any, **constants: Any) -> None:
        """Launch on the current device and stream.

        Args:
            grid: Programs along each axis.
            types: Key of the argument types and the device; launches with the same key share compiled code.
            *args: The kernel's arguments before its constants. Whole numbers for a float argument must be floats, as
                code compiled for an int takes ints only.
            **constants: The kernel's constants, in its order.
        """
        if self._is_interpreted:
            if getattr(_ahead, "jobs", None) is not None:
                return
            self._kernel[grid](*args, **constants, **self._options)
            return
        key = (types, *constants.values())
        jobs = getattr(_ahead, "jobs", None)
        if jobs is not None:
            if key not in self._compiled:
                jobs.setdefault((self, key), partial(self._compile, key, grid, args, constants))
            return
        loaded = self._loaded.get(key) or self._load(key, grid, args, constants)
        loaded[grid](*args, *constants.values())

    def _load(self, key: Hashable, grid: tuple[int, int, int], args: tuple[Any, ...], constants: Any) -> Any:
        compiled = self._compiled.get(key) or self._compile(key, grid, args, constants)
        with _loading:
            compiled.run  # noqa: B018 (it loads the code)
        self._loaded[key] = compiled
        return compiled

    def _compile(self, key: Hashable, grid: tuple[int, int, int], args: tuple[Any, ...], constants: Any) -> Any:
        compiled = self._kernel.warmup(*args, grid=grid, **constants, **self._options)
        if compiled is not None:  # None inside `specializing`
            self._compiled[key] = compiled
        return compiled


@contextmanager
def compiling_ahead(device: torch.device) -> Iterator[None]:
    """Collect the kernels this thread would launch; compile them at the end in parallel.

    Within another one it adds to that one's kernels.
    """
    if getattr(_ahead, "jobs", None) is not None:
        yield
        return
    jobs: dict[tuple[Launcher, Hashable], Callable[[], object]] = {}
    _ahead.jobs = jobs
    try:
        yield
    finally:
        _ahead.jobs = None

    def compile_one(job: Callable[[], object]) -> None:
        with on_device(device):
            job()

    with _compiling, cache.telling():  # serialised: a second thread finds the first one's kernels
        jobs = {key: job for key, job in jobs.items() if key[1] not in key[0]._compiled}
        if device.type == "cuda" and len(jobs) > 1:
            kernels: list[Specialization] = []
            with on_device(device), specializing(kernels):
                for job in jobs.values():
                    job()
            compilers.compile(kernels)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for each in [pool.submit(compile_one, job) for job in jobs.values()]:
                each.result()


class Launchers:
    """Caches launchers of a kernel by warps and stages; launches never wait and can be captured in a CUDA graph.

    Where the GPU allows it, a kernel begins before the previous one has ended (`has_dependent_launches`), unless its
    programs would crowd.

    Args:
        kernel: See `Launcher`. With its last constant, `WAITS`, it waits for the previous kernel itself. It must let
            the next kernel begin only after that, so that a wait covers all kernels before.
        options: Triton's launch options of all launchers, such as `maxnreg`.
    """

    def __init__(self, kernel: Any, **options: Any) -> None:
        self._kernel, self._options = kernel, options
        self._launchers: dict[tuple[int, int, bool], Launcher] = {}

    def of(self, device: torch.device, warps: int, stages: int, rows: int = 0) -> Callable[..., None]:
        """A function that launches on the device's current stream; `rows` of the product decide on early start."""
        waits = rows not in _CROWDING and has_dependent_launches(device)
        launcher = self.make(warps, stages, waits=waits)

        def launch(*args: Any, **constants: Any) -> None:
            with on_device(device):
                launcher(*args, **constants, WAITS=waits)

        return launch

    def make(self, warps: int, stages: int, *, waits: bool) -> Launcher:
        """Get or make a launcher; with `waits`, the kernel starts before the previous one has ended."""
        key = (warps, stages, waits)
        if key not in self._launchers:
            options = {**self._options, "launch_pdl": True} if waits else self._options
            self._launchers[key] = Launcher(self._kernel, num_warps=warps, num_stages=stages, **options)
        return self._launchers[key]


@lru_cache(maxsize=256)
def table(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Copy numbers to a device, once while cached. The tensor is shared and must not be written to."""
    return torch.tensor(values, dtype=dtype, device=device)
