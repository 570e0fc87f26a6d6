"""Pictures as decoders on a GPU leave them: NV12 in its memory, converted to RGB where they are used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import av
import numpy as np
import torch
import torch.utils.dlpack
from numpy.typing import NDArray

from maskjet.media.colours import FULL_RANGE
from maskjet.ops.gpu import on_device
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
        """uint8 [H, W, 3], RGB, on the host: what swscale gives for the same frame from a decoder on the CPU."""
        return cpu.to_rgb(YUVFrames.within(self.memory.cpu(), self.conversion))[0].numpy()


@cache
def conversion_of(matrix: int, *, is_full_range: bool) -> torch.Tensor:
    """The numbers that convert frames to RGB, int32 [4, 2] on the CPU; the same object for the same arguments.

    Args:
        matrix: Matrix coefficients, a code point of ITU-T H.273 that swscale knows.
        is_full_range: Whether luma spans 0..255, not 16..235.
    """
    return yuv_conversion(_MATRICES[matrix], full_range=is_full_range)


def copy_surface(surface: av.VideoFrame, device: str, matrix: int) -> Picture:
    """Copy a picture out of the decoder's memory, of which there is little.

    FFmpeg fills the surface on the device's default stream. The copy is done there, and finished on return, so that the
    surface can be given back and any stream may read the copy.

    Args:
        surface: What the decoder gave: NV12 in GPU memory, upright, of even size.
        device: The GPU, "cuda:N".
        matrix: Matrix coefficients to convert it with; see `conversion_of`.
    """
    height, width = surface.height, surface.width
    stream = torch.cuda.default_stream(torch.device(device))
    with on_device(stream.device), torch.cuda.stream(stream):
        memory = torch.empty((height // 2 * 3, width), dtype=torch.uint8, device=device)
        for rows, plane in zip((memory[:height], memory[height:]), surface.planes, strict=True):
            samples = torch.utils.dlpack.from_dlpack(plane.__dlpack__(stream=None))
            rows.copy_(samples.view(rows.shape), non_blocking=True)
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record(stream)
    done.synchronize()
    return Picture(memory, conversion_of(matrix, is_full_range=surface.color_range == FULL_RANGE))
