"""Pictures as decoders on a GPU leave them: NV12 in its memory, converted to RGB where they are used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.ops.preprocess import cpu
from maskjet.ops.preprocess.yuv import Matrix, YUVFrames, yuv_conversion

_MATRICES: dict[int, Matrix] = {1: "bt709", 4: "fcc", 5: "bt601", 6: "bt601", 7: "smpte240m", 9: "bt2020"}


@dataclass(frozen=True, eq=False)
class Picture:
    """A frame in NV12."""

    memory: torch.Tensor
    """uint8 [H × 3 / 2, W], H and W even: the rows of luma, then those of chroma, U and V in turn."""
    conversion: torch.Tensor
    """int32 [4, 2] on the CPU: the numbers that convert it to RGB; the same object for all frames of equal colours."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the memory; no RGB frame has such a one."""
        rows, width = self.memory.shape
        return rows, width

    @property
    def size_hw(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        rows, width = self.memory.shape
        return rows // 3 * 2, width

    def to_rgb(self) -> NDArray[np.uint8]:
        """uint8 [H, W, 3], RGB, on the host; equal to swscale's for the same frame from a decoder on the CPU."""
        device = self.memory.device
        frames = YUVFrames.within(self.memory, self.conversion.to(device))
        return (cpu.to_rgb(frames) if device.type == "cpu" else frames.to_rgb())[0].cpu().numpy()


@cache
def conversion_of(matrix: int, *, is_full_range: bool) -> torch.Tensor:
    """The numbers that convert frames to RGB, int32 [4, 2] on the CPU; the same object for the same arguments.

    Args:
        matrix: Matrix coefficients, a code point of ITU-T H.273 that swscale knows.
        is_full_range: Whether luma spans 0..255, not 16..235.
    """
    return yuv_conversion(_MATRICES[matrix], full_range=is_full_range)
