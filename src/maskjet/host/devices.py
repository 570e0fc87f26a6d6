"""Placement of worker processes on devices (`CUDA_VISIBLE_DEVICES`)."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maskjet.errors import InputError, UnsupportedError

ALL = "all"
"""Value of `devices` that stands for every GPU."""
SEGMENTS_PER_GPU = 8
"""Concurrent segments per GPU, unless fewer are requested: while one is opened or written, others keep the GPU busy.
Each has two batches in flight, and an engine lends 16 slots. H200, 1080p: 1,706 frames/s; with four 1,313."""
PROCESSES_BY_CORES = ((16, 4), (8, 2))
"""(cores per GPU, processes per GPU) for `--processes auto`, from the first entry that fits; one process with fewer
cores. A job over 720p JPEGs: 1,341 images/s by one process, 3,199 by four (benchmarks/images.md)."""
_LEAST_FREE = 16 * 2**30  # bytes of free GPU memory, below which one process runs
_PROCESS_BYTES = 4 * 2**30  # GPU memory per process, CUDA context included
_VISIBLE, _THREADS = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Place:
    """Device and environment of one worker process."""

    number: int
    """Number of the process, from 0."""
    device: str
    """Device as named by the parent process: cpu or cuda:N."""
    variables: Mapping[str, str]
    """Environment variables that restrict the process to this device and its share of the cores."""

    @property
    def own_device(self) -> str:
        """Device as named by the process itself, which sees one GPU at most."""
        return "cpu" if self.device == "cpu" else "cuda:0"

    def __str__(self) -> str:
        return f"process {self.number} on {self.device}"


def choose(devices: str, check_cpu: Callable[[], None], processes: int | None = 1) -> list[Place]:
    """Choose the places of worker processes; creates no CUDA context.

    Args:
        devices: "all" for each GPU, or names as `EngineConfig.device` has them, with commas; repeated for several
            processes on one device; or "auto" for the first GPU, else the CPU.
        processes: Processes for each name; None for as many as fill a GPU, but one for names that are repeated.
        check_cpu: Called if a CPU is among the devices, `EngineConfig.check_cpu`.
    """
    names = [name_device(name.strip()) for name in devices.split(",")] if devices not in (ALL, "auto") else []
    for name in names:
        if not re.fullmatch(r"cpu|cuda(:\d{1,4})?", name):
            given = f"{name!r} in {devices!r}" if len(names) > 1 else repr(name)
            raise InputError(f"devices must be all, or cpu, cuda or cuda:N with commas between them, got {given}.")
    count = 0 if set(names) == {"cpu"} else count_gpus()
    if devices == ALL:
        if not count:
            raise UnsupportedError("devices='all' needs a GPU, PyTorch sees none; use 'cpu'.")
        names = [f"cuda:{index}" for index in range(count)]
    elif devices == "auto":
        names = ["cuda:0" if count else "cpu"]
    names = ["cuda:0" if name == "cuda" else name for name in names]
    for name in names:
        if name == "cpu":
            check_cpu()
        elif int(name.removeprefix("cuda:")) >= count:
            raise UnsupportedError(f"devices must be on this machine, {name!r} is not: PyTorch sees {count} GPUs.")
    cores = len(os.sched_getaffinity(0))
    if processes is None and len(set(names)) == len(names):
        share = cores // len(names)
        counts = [_fill(each, share) for each in place(names, os.environ, cores=cores)]
    else:
        counts = [processes or 1] * len(names)
    names = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    return place(names, os.environ, cores=cores)


def name_device(device: object) -> str:
    """Normalise the name of a device: 0 and "0" become "cuda:0"."""
    return f"cuda:{device}" if re.fullmatch(r"\d{1,4}", str(device)) else str(device)


def _fill(place: Place, cores: int) -> int:
    """Number of processes for a GPU, from its free memory and `cores`."""
    free = free_gpu_bytes(place)
    if free is None or free < _LEAST_FREE:
        return 1
    most = next((processes for least, processes in PROCESSES_BY_CORES if cores >= least), 1)
    return min(most, free // _PROCESS_BYTES)


def free_gpu_bytes(place: Place) -> int | None:
    """Free GPU memory of a place in bytes, by nvidia-smi, without a CUDA context; None if unknown."""
    gpu = place.variables[_VISIBLE]
    told = ask_driver(f"--id={gpu}", "--query-gpu=memory.free", "--format=csv,noheader,nounits").strip() if gpu else ""
    return int(told) * 2**20 if told.isdigit() else None  # not a number for MIG instances


def count_gpus() -> int:
    """Number of GPUs that PyTorch sees; creates no CUDA context.

    PyTorch, whose import takes seconds, is asked only where nvidia-smi, which knows no MIG instances, may not know.
    """
    package = importlib.util.find_spec("torch")
    if "torch" not in sys.modules and package is not None and package.origin is not None:
        if not (Path(package.origin).parent / "lib" / "libtorch_cuda.so").exists():
            return 0
        gpus = ask_driver("-L").splitlines()
        known = [str(index) for index in range(len(gpus))]
        visible = os.environ.get(_VISIBLE, ",".join(known)).split(",")
        is_plain = all(line.startswith("GPU ") for line in gpus) and len({*visible}) == len(visible)
        if gpus and is_plain and {*visible} <= {*known}:
            return len(visible)
    import torch

    return torch.cuda.device_count()  # by NVML, or by the driver where that fails


def ask_driver(*options: str) -> str:
    """Run nvidia-smi; returns its output, "" if it fails."""
    try:
        return subprocess.run(["nvidia-smi", *options], capture_output=True, check=True, timeout=20, text=True).stdout
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return ""


def place(devices: Sequence[str], environ: Mapping[str, str], *, cores: int) -> list[Place]:
    """Places of processes on devices: each sees only its GPU, and gets a share of the cores for OpenMP.

    Entries of CUDA_VISIBLE_DEVICES, indices or UUIDs of GPUs or MIG instances, are passed on; OMP_NUM_THREADS is kept.
    """
    visible = environ.get(_VISIBLE)
    entries = None if visible is None else [entry.strip() for entry in visible.split(",")]
    threads = environ.get(_THREADS) or str(max(1, cores // len(devices)))
    places = []
    for number, device in enumerate(devices):
        index = "" if device == "cpu" else device.removeprefix("cuda:")
        seen = entries[int(index)] if entries and index else index
        places.append(Place(number, device, {_VISIBLE: seen, _THREADS: threads}))
    return places
