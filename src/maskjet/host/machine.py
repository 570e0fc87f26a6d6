"""The machine and the software versions of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from maskjet.host.devices import ask_driver

_PACKAGES = (
    *("maskjet", "numpy", "numba", "opencv-python-headless", "triton"),
    *("pycocotools", "rfdetr", "inference-models"),
)
INT8_PRODUCTS = frozenset({"avxvnni", "avx512vnni", "amx-int8", "dotprod", "i8mm"})
"""Features of a CPU, in LLVM's names, with which products of bytes are faster than float32's."""
BF16_PRODUCTS = frozenset({"avx512bf16", "amx-bf16", "bf16"})
"""Features with which products of bfloat16 are."""
_FEATURES = INT8_PRODUCTS | BF16_PRODUCTS | {"avx2", "avx512f"}


@dataclass(frozen=True)
class Gpu:
    """A GPU and its software."""

    name: str
    """Name of the GPU, as its driver gives it."""
    driver: str | None
    """Version of the driver; None if nvidia-smi does not give it."""
    cuda: str | None
    """Version of CUDA that torch was built with."""
    triton: str | None
    """Version of Triton; None if it is not installed."""


@dataclass(frozen=True)
class Machine:
    """A machine and its software, at the time of a measurement."""

    cpu: str
    """Model name of the processor."""
    cores: int
    """Cores this process may use."""
    torch_threads: int
    """Threads that one torch operation uses on the CPU."""
    load: float
    """Load average of the last minute; 0 on an idle machine."""
    gpu: Gpu | None
    """The GPU that torch uses; None without one."""
    system: str
    """Operating system, kernel release and architecture."""
    versions: dict[str, str]
    """Versions of Python and the packages that matter; those not installed are left out."""
    commit: str | None
    """Commit of maskjet's checkout, "+" appended if it was modified; None outside a checkout."""
    measured_at: str
    """Date and time, UTC."""

    def __str__(self) -> str:
        cpu = f"{self.cpu}, {self.cores} cores, load {self.load}"
        return cpu if self.gpu is None else f"{self.gpu.name}; {cpu}"


def describe_machine() -> Machine:
    """Describe this machine: its processors, its GPU, and the versions of the packages that matter."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    gpu = None
    if torch.cuda.is_available():
        drivers = ask_driver("--query-gpu=driver_version", "--format=csv,noheader").split()
        gpu = Gpu(
            torch.cuda.get_device_name(), drivers[0] if drivers else None, torch.version.cuda, found.get("triton")
        )
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        torch_threads=torch.get_num_threads(),
        load=round(os.getloadavg()[0], 2),
        gpu=gpu,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions=found,
        commit=_commit(),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def cpu_features() -> frozenset[str]:
    """The features of this CPU that decide how a network runs on it, in LLVM's names."""
    from llvmlite.binding import get_host_cpu_features

    found = get_host_cpu_features()
    return frozenset(name for name in _FEATURES if found.get(name))


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _commit() -> str | None:
    def git(*arguments: str) -> str:
        here = Path(__file__).parents[1]  # folder of the package
        return subprocess.run(["git", *arguments], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        is_modified = bool(git("status", "--porcelain", "--untracked-files=no", "--", "."))
        return git("rev-parse", "--short", "HEAD") + ("+" if is_modified else "")
    except (OSError, subprocess.CalledProcessError):
        return None
