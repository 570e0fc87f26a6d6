"""Table of a batch's frames for kernels: addresses, sizes and placement, one row of int32 per frame."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from maskjet.ops.canvas import Canvas, Region
from maskjet.ops.selection import SizeTable

ROW = 32
"""int32 words of a row: two addresses, then the numbers of `pack_row`, then padding."""
CHROMA, HEIGHT, WIDTH, STRIDES, CHROMA_STRIDES, CONVERSION, REGION, CANVAS = 2, 4, 5, 6, 9, 12, 20, 24
"""Word offsets of a row's fields; word 0 holds the address of the pixels, or of luma."""
_PLACE = struct.Struct("<2q")
_NUMBERS = struct.Struct("<20i6f8x")
NO_CHROMA = (0,) * 11


def pack_row(
    size_hw: tuple[int, int], strides: Sequence[int], region: Region, canvas: Canvas, chroma: Sequence[int] = NO_CHROMA
) -> bytes:
    """Pack the fields of a row that do not depend on the address.

    Args:
        size_hw: (height, width) in pixels.
        strides: Bytes from a pixel to the one below it, to the one right of it, and from red to green. May be negative.
        region: The part of the network's input that the frame fills.
        canvas: The area that the input shows, in pixels of the frame.
        chroma: Of NV12 and its like: three strides of chroma, then the eight numbers of `yuv_conversion`.
    """
    return _NUMBERS.pack(*size_hw, *strides, *chroma, *region.box, *canvas.split)


class FrameTable:
    """Where the frames of a batch lie, their sizes, colours and places in the network's input.

    Kernels read it at each launch: a captured CUDA graph serves frames of any size, wherever they lie.

    Args:
        on_host: int32 [B, `ROW`], which `put` writes; page-locked if the device is a GPU.
        device: Where kernels read it.
        padding: RGB around frames that don't fill the input, on the 0..1 scale; see `Region`.
    """

    def __init__(self, on_host: torch.Tensor, device: torch.device, padding: tuple[float, float, float]) -> None:
        batch = len(on_host)
        self._on_host = on_host
        self._held: list[tuple[bytes, int, int] | None] = [None] * batch  # contents of each row, to skip unchanged ones
        self._bytes = on_host.view(torch.uint8).numpy().reshape(-1).data
        self.rows = on_host if device.type == "cpu" else torch.zeros_like(on_host, device=device)
        """int32 [B, `ROW`], on the device."""
        self.padding = padding
        self.sizes = SizeTable(
            [(1, 1)] * batch,
            self.rows[:, HEIGHT : WIDTH + 1],
            [Canvas.of((1, 1))] * batch,
            self.rows[:, CANVAS : CANVAS + 6].view(torch.float32),
        )
        """The sizes of the frames that were put last."""

    def put(
        self,
        number: int,
        packed: bytes,
        size_hw: tuple[int, int],
        canvas: Canvas,
        address: int = 0,
        chroma_address: int = 0,
    ) -> None:
        """Write a frame's row on the host: its addresses and `packed`, the output of `pack_row`.

        Addresses are those of its first pixel, or luma, and first chroma sample on the device; of no use to steps that
        take tensors.
        """
        row = (packed, address, chroma_address)
        if self._held[number] == row:
            return
        self._held[number] = row
        begin = 4 * ROW * number
        _PLACE.pack_into(self._bytes, begin, address, chroma_address)
        self._bytes[begin + _PLACE.size : begin + 4 * ROW] = packed
        self.sizes.hw[number], self.sizes.canvases[number] = size_hw, canvas

    def take(self, other: FrameTable, number: int) -> None:
        """Copy a row of another table to the first row, on the device only."""
        self.rows[:1].copy_(other.rows[number : number + 1])
        self.sizes.hw[0], self.sizes.canvases[0] = other.sizes.hw[number], other.sizes.canvases[number]

    def fill(self, used: int) -> None:
        """Fill rows from `used` on with the first frame, since earlier frames may be freed."""
        first = self._held[0]
        assert first is not None
        for number in range(used, len(self._held)):
            packed, address, chroma_address = first
            self.put(number, packed, self.sizes.hw[0], self.sizes.canvases[0], address, chroma_address)

    def upload(self) -> None:
        """Copy the table to the device, on the current stream."""
        if self.rows is not self._on_host:
            self.rows.copy_(self._on_host, non_blocking=True)


class DeviceFrames:
    """Frames on a GPU, RGB, or NV12 and its like, that `preprocess` finds by a `FrameTable`."""

    def __init__(self, table: FrameTable, *, is_yuv: bool) -> None:
        self.table, self.is_yuv = table, is_yuv
