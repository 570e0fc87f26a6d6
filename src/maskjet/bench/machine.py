"""The machine and the versions that a measurement holds for."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

_PACKAGES = ("maskjet", "numpy", "numba", "opencv-python-headless", "pycocotools")
_COPIED_BYTES = 2**27  # four times the largest cache that we have seen


@dataclass(frozen=True)
class Machine:
    """Where and with what something was measured."""

    cpu: str
    """Model name of the processor."""
    cores: int
    """Cores this process may use."""
    torch_threads: int
    """Threads of one torch operation."""
    copy_gb_per_s: float
    """Bytes read and written per second, in 1e9, by the fastest of ten copies of 128 MiB."""
    load: float
    """Processes that wanted a core, on average over the minute before: 0 on an idle machine."""
    system: str
    """Kernel and architecture."""
    versions: dict[str, str]
    """Of Python and the packages that matter; those not installed are left out."""
    commit: str | None
    """Of maskjet's checkout, "+" appended if it was modified; None outside of one."""
    measured_at: str
    """Date and time, UTC."""

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cores} cores, load {self.load}"


def describe_machine() -> Machine:
    """Look at the machine; takes a fraction of a second to measure its memory."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        torch_threads=torch.get_num_threads(),
        load=round(os.getloadavg()[0], 2),
        copy_gb_per_s=round(_copy_bytes_per_s() / 1e9, 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions={"python": platform.python_version(), "torch": torch.__version__, **_installed_versions()},
        commit=_commit(),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _installed_versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _copy_bytes_per_s() -> float:
    source = torch.zeros(_COPIED_BYTES, dtype=torch.uint8)
    target = torch.ones_like(source)
    fastest = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        target.copy_(source)
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * _COPIED_BYTES / fastest


def _commit() -> str | None:
    def git(*arguments: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *arguments], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        is_modified = bool(git("status", "--porcelain", "--untracked-files=no", "--", "."))
        return git("rev-parse", "--short", "HEAD") + ("+" if is_modified else "")
    except (OSError, subprocess.CalledProcessError):
        return None
