"""Allocate page-locked host memory, and scratch memory on a device."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence

import numpy as np
import torch


def pin(shape: Sequence[int]) -> torch.Tensor:
    """Allocate page-locked host memory, uint8, that is freed with the tensor.

    PyTorch's own records events when it is freed, which ends the process after the GPU has failed.
    """
    size = math.prod(shape)
    memory = mmap.mmap(-1, max(size, 1))
    values = np.frombuffer(memory, dtype=np.uint8, count=size)
    address = values.ctypes.data
    error = int(torch.cuda.cudart().cudaHostRegister(address, len(memory), 0))  # type: ignore[no-untyped-call]
    if error:
        raise RuntimeError(f"{len(memory)} bytes can't be page-locked: CUDA error {error}")
    weakref.finalize(values, _unlock, address, memory)
    return torch.from_numpy(values).view(*shape)


def _unlock(address: int, _memory: mmap.mmap) -> None:
    """Unlock host memory before it is unmapped: another thread may then lock the same addresses at once."""
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


class Scratch:
    """Device memory for intermediate results of batches that never run at the same time.

    Each name has one piece, which is replaced by a larger one when more is asked for. Whoever took the smaller one
    keeps it, as captured graphs know its address; so all pieces of a name together are at most twice the largest where
    sizes double.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pieces: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, length: int, dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised memory [length], shared by all calls with this name and dtype."""
        piece = self._pieces.get((name, dtype))
        if piece is None or len(piece) < length:
            piece = self._pieces[name, dtype] = torch.empty(length, dtype=dtype, device=self.device)
        return piece[:length]

    @property
    def nbytes(self) -> int:
        """Bytes of the current pieces of memory; smaller, replaced pieces are not counted."""
        return sum(piece.nbytes for piece in self._pieces.values())
