"""Settings of the whole process that must be made before PyTorch runs: the processor's instructions, OpenMP's waiting.

Both are environment variables that a library reads once, so that they also reach processes started from this one. A
variable that the user has set is never changed. Nothing here imports PyTorch.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import warnings
from pathlib import Path

_LEVEL = "ONEDNN_MAX_CPU_ISA"
_CPUINFO = Path("/proc/cpuinfo")
_TILE_LEAF = 0x1D  # of CPUID: how many tiles there are and how large; oneDNN configures AMX from it
_LEVELS = (
    ("avx512_fp16", "AVX512_CORE_FP16"),
    ("avx512_bf16", "AVX512_CORE_BF16"),
    ("avx512_vnni", "AVX512_CORE_VNNI"),
    ("avx512bw", "AVX512_CORE"),
)
_SPINS = "10000"
_notes: list[str] = []


def level_without_amx(cpuinfo: str) -> str | None:
    """The best level for oneDNN on a processor that announces AMX but does not describe its tiles.

    Hypervisors may pass AMX's feature bits on and end CPUID before leaf 0x1d. oneDNN, inside PyTorch, then runs AMX
    without a tile configuration: bfloat16 products end in SIGILL, float32 convolutions that may round in "could not
    create a primitive" (seen on a Xeon of the Sapphire Rapids generation in a microVM, PyTorch 2.15).

    Args:
        cpuinfo: What /proc/cpuinfo says.

    Returns:
        A value for ONEDNN_MAX_CPU_ISA; None where AMX is whole, or not there.
    """
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())  # of the first core
    flags, highest_leaf = set(fields.get("flags", "").split()), fields.get("cpuid level", "")
    if "amx_tile" not in flags or not highest_leaf.isdecimal() or int(highest_leaf) >= _TILE_LEAF:
        return None
    return next((level for flag, level in _LEVELS if flag in flags), "AVX2")


def avoid_broken_amx(cpuinfo: Path = _CPUINFO) -> None:
    """Hold oneDNN below AMX where the processor's AMX is broken; warn where PyTorch has used oneDNN already."""
    try:
        level = level_without_amx(cpuinfo.read_text())
    except OSError:  # not Linux
        return
    if level is None:
        return
    if _LEVEL in os.environ:
        _notes.append(f"AMX is broken, oneDNN's level is the user's: {_LEVEL}={os.environ[_LEVEL]}")
        return
    os.environ[_LEVEL] = level
    if "torch" in sys.modules and "AMX" in _onednn_level():
        _notes.append("AMX is broken, and PyTorch uses it: it ran before maskjet was imported")
        warnings.warn(
            f"The processor's AMX is broken, and PyTorch uses it: import maskjet first, or set {_LEVEL}={level}.",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    _notes.append(f"AMX is broken, oneDNN is held to {level}")


def _onednn_level() -> str:
    """The instruction set that oneDNN has settled on; it settles here if nothing has used it before.

    PyTorch does not export oneDNN's own question, so that its log is read: written to the descriptor of stdout by C, on
    the first call that it logs. What others write there meanwhile is passed on.
    """
    import torch

    libc = ctypes.CDLL(None)
    libc.fflush(None)
    stdout = os.dup(1)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 1)
        try:
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):  # type: ignore[no-untyped-call]
                torch.zeros(1).to_mkldnn().to_dense()  # a copy: no instruction beyond AVX-512
            libc.fflush(None)
        finally:
            os.dup2(stdout, 1)
        log.seek(0)
        lines = log.read().splitlines(keepends=True)
    os.write(stdout, b"".join(line for line in lines if not line.startswith(b"onednn_verbose")))
    os.close(stdout)
    return next((line.decode() for line in lines if b",cpu,isa:" in line), "")


def notes() -> tuple[str, ...]:
    """What was found wrong with this machine, and what was done about it; for `Model.report()`."""
    return tuple(_notes)


def spin_less() -> None:
    """Let OpenMP's threads sleep soon after their work; for programs, before PyTorch is loaded.

    GNU's OpenMP, which PyTorch's wheels bring, spins for milliseconds at the end of each parallel loop. Alone on a
    machine that is fastest; beside busy neighbours the threads that spin take the cores from those that work:
    `benchmarks/neighbours.md`.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = _SPINS
