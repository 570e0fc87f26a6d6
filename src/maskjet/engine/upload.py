"""Brings the frames of a batch to the GPU, whatever their sizes: one asynchronous copy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from maskjet.engine.copying import Copier
from maskjet.ops.memory import pin

_ALIGNMENT = 256  # bytes


class Upload:
    """Page-locked memory and as much of the GPU's, in which the frames of a batch lie one behind the other.

    Both grow; graphs learn each frame's address from a `FrameTable`.

    Args:
        device: The GPU.
        copier: Copies frames into page-locked memory.
    """

    def __init__(self, device: torch.device, copier: Copier) -> None:
        self._device, self._copier = device, copier
        self._on_host = torch.empty(0, dtype=torch.uint8)
        self._on_device = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes on the GPU, and as many on the host."""
        return self._on_device.nbytes

    def bring(self, frames: Sequence[torch.Tensor], *, all_cores: bool) -> list[int]:
        """Copy frames to the GPU, on the current stream, on which nothing is under way.

        Args:
            frames: uint8, on the host, of any shapes and strides. They may be overwritten on return.
            all_cores: Whether copying may use all cores.

        Returns:
            The address of each frame, whose bytes have no gaps.
        """
        ends = list(accumulate(-(-frame.nbytes // _ALIGNMENT) * _ALIGNMENT for frame in frames))
        if ends[-1] > len(self._on_host):
            size = 1 << (ends[-1] - 1).bit_length()
            self._on_host = self._on_device = torch.empty(0, dtype=torch.uint8)  # freed first
            self._on_host, self._on_device = pin((size,)), torch.empty(size, dtype=torch.uint8, device=self._device)
        offsets = [0, *ends[:-1]]
        self._copier.copy(self._on_host, offsets, frames, all_cores=all_cores)
        self._on_device[: ends[-1]].copy_(self._on_host[: ends[-1]], non_blocking=True)
        begin = self._on_device.data_ptr()
        return [begin + offset for offset in offsets]
