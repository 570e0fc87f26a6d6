"""Upload the frames of a batch, of any sizes, in one asynchronous copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from maskjet.engine.copying import Copier
from maskjet.ops.memory import pin

_ALIGNMENT = 256  # bytes, of each frame's address


class Upload:
    """A page-locked host buffer and a GPU buffer of equal size that hold the frames of a batch in sequence.

    Both grow; graphs learn each frame's address from a `FrameTable`.
    """

    def __init__(self, device: torch.device, copier: Copier) -> None:
        self._device, self._copier = device, copier
        self._on_host = self._on_device = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._size = self._begin = 0
        self._length = 0  # bytes of the last batch
        self._parts: tuple[torch.Tensor, ...] = ()  # slices of that length, kept since slicing costs as much as copying

    @property
    def nbytes(self) -> int:
        """Size of the GPU buffer, in bytes; the host buffer has the same."""
        return self._size

    def bring(self, frames: Sequence[torch.Tensor], *, all_cores: bool) -> list[int]:
        """Copy frames to the GPU on the current stream, which must be idle; returns each frame's GPU address.

        Frames are uint8, on the host, of any shapes and strides, and may be overwritten on return. Copies have no gaps.
        """
        offsets, end = [], 0
        for frame in frames:
            offsets.append(end)
            end += -(-frame.nbytes // _ALIGNMENT) * _ALIGNMENT
        if end > self._size:
            self._grow(1 << (end - 1).bit_length())
        self._copier.copy(self._on_host, offsets, frames, all_cores=all_cores)
        if end != self._length:
            self._length, self._parts = end, (self._on_device[:end], self._on_host[:end])
        self.repeat()
        return [self._begin + offset for offset in offsets]

    def repeat(self) -> None:
        """Copy the last frames to the GPU again, on the current stream."""
        if self._parts:
            on_device, on_host = self._parts
            on_device.copy_(on_host, non_blocking=True)

    def _grow(self, size: int) -> None:
        self._on_host = self._on_device = torch.empty(0, dtype=torch.uint8, device="cpu")  # free both before allocating
        self._parts = ()
        self._on_host, self._on_device = pin((size,)), torch.empty(size, dtype=torch.uint8, device=self._device)
        self._size, self._length, self._begin = size, 0, self._on_device.data_ptr()
