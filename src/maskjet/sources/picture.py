"""Frames decoded by a GPU: NV12 in its memory, converted to RGB only where needed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.ops.gpu import capturing, on_device
from maskjet.ops.memory import pin
from maskjet.ops.preprocess import cpu
from maskjet.ops.preprocess.yuv import Matrix, yuv_conversion

_of_thread = threading.local()
"""`memory`: page-locked uint8 [bytes], a download buffer per thread."""
_MATRICES: dict[int, Matrix] = {1: "bt709", 4: "fcc", 5: "bt601", 6: "bt601", 7: "smpte240m", 9: "bt2020"}


@dataclass(frozen=True, eq=False)
class Picture:
    """A frame in NV12, usually in GPU memory."""

    memory: torch.Tensor
    """uint8 [H × 3 / 2, W], H and W even: rows of luma, then rows of interleaved U and V. Written completely, so any
    stream may read it."""
    conversion: torch.Tensor
    """int32 [4, 2] on the CPU: coefficients of `yuv_conversion`; frames of equal colours share the tensor."""
    tile: tuple[int, int, int, int] | None = None
    """(top, left, height, width) of the visible part in pixels, all even; None for the whole frame."""

    @property
    def area(self) -> tuple[int, int, int, int]:
        """`tile`, or (0, 0, height, width)."""
        return self.tile or (0, 0, self.memory.shape[0] // 3 * 2, self.memory.shape[1])

    @property
    def size_hw(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.area[2:]

    def planes(self, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of luma [H, W] and chroma [H / 2, W / 2, 2] in `memory`, or in a copy of it."""
        top, left, height, width = self.area
        columns = slice(left, left + width)
        chroma = memory[len(memory) // 3 * 2 :][top // 2 : (top + height) // 2, columns]
        return memory[top : top + height, columns], torch.unflatten(chroma, -1, (width // 2, 2))

    def to_rgb(self, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """uint8 [H, W, 3], RGB, on the host; equal to swscale's for the same frame from a decoder on the CPU.

        From a GPU it comes as it is, half as many bytes as RGB has, and the CPU converts it: in few calls, as each
        takes the interpreter's lock. The thread sleeps while it waits for the GPU. `out`, contiguous, is overwritten.
        """
        memory = self.memory.contiguous() if self.memory.device.type == "cpu" else _download(self.memory)
        luma, chroma = (plane.contiguous().numpy() for plane in self.planes(memory))
        rgb = np.empty((*luma.shape, 3), np.uint8) if out is None else out
        cpu.convert(luma, chroma, self.conversion.numpy(), rgb)
        return rgb


def _download(memory: torch.Tensor) -> torch.Tensor:
    """Copy a picture to the host, into a buffer that this thread's next call overwrites."""
    held: torch.Tensor | None = getattr(_of_thread, "memory", None)
    stream = _stream_of(memory.device)
    copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call] # who waits sleeps
    # PyTorch reuses 32 streams, so an engine may have the same one; its graph must not capture the copy.
    with capturing, torch.inference_mode(), on_device(memory.device), stream:
        if held is None or len(held) < memory.numel():
            held = _of_thread.memory = pin((memory.numel(),))
        picture = held[: memory.numel()].view(memory.shape).copy_(memory, non_blocking=True)
        copied.record(stream)
    copied.synchronize()
    return picture


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """The stream of all downloads from a GPU; the bus serialises them anyway."""
    with on_device(device):
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@cache
def conversion_of(matrix: int, *, is_full_range: bool) -> torch.Tensor:
    """Cached `yuv_conversion`, int32 [4, 2] on the CPU; the same tensor for equal arguments.

    The matrix is a code point of ITU-T H.273 that swscale knows.
    """
    return yuv_conversion(_MATRICES[matrix], full_range=is_full_range)
