"""Frames in YUV 4:2:0, as decoders output them, and their conversion to RGB.

The conversion is that of FFmpeg's swscale for yuv420p to rgb24 on x86, bit for bit: every 2 × 2 pixels share one chroma
sample, and products are rounded down one by one.

    luma = ((8 Y - offset) × scale) >> 16
    each channel = luma + (((8 U - 1024) × u) >> 16) + (((8 V - 1024) × v) >> 16), clamped to 0..255

swscale converts frames of odd height, and NV12 of any size, another way, which interpolates chroma. Its bytes differ
wherever the colour changes: in H.264 of drawn streets by 0.9 on average and up to 66.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from maskjet.errors import InputError
from maskjet.ops.record import describe

Matrix = Literal["bt601", "bt709", "bt2020", "fcc", "smpte240m"]

# Weights of V in red, U in blue, -U in green, -V in green; limited range, in 1/65536: libswscale/yuv2rgb.c.
_SHARES: Mapping[Matrix, tuple[int, int, int, int]] = {
    "bt601": (104597, 132201, 25675, 53279),
    "bt709": (117489, 138438, 13975, 34925),
    "bt2020": (110013, 140363, 12277, 42626),
    "fcc": (104448, 132798, 24759, 53109),
    "smpte240m": (117579, 136230, 16907, 35559),
}
_MOST = 2**31 - 1  # kernels count in 32 bits


def yuv_conversion(matrix: Matrix, *, full_range: bool) -> torch.Tensor:
    """The integer coefficients that convert luma and chroma to RGB; see `YUVFrames`.

    Args:
        matrix: Matrix coefficients of the frames. SD video that names none is "bt601", HD video "bt709".
        full_range: Whether luma spans 0..255, not 16..235.

    Returns:
        int32 [4, 2] on the CPU: (offset, scale) of luma, then the shares (u, v) of red, green and blue.

    Raises:
        InputError: An argument is not as above.

    Examples:
        >>> yuv_conversion("bt709", full_range=False).tolist()
        [[128, 9539], [0, 14686], [-1747, -4366], [17305, 0]]
    """
    if matrix not in get_args(Matrix):
        raise InputError(f"matrix must be one of {get_args(Matrix)}, got {matrix!r}.")
    if not isinstance(full_range, bool):
        raise InputError(f"full_range must be True or False, got {full_range!r}.")
    red, blue, green_u, green_v = _SHARES[matrix]
    shares = [0, red, -green_u, -green_v, blue, 0]
    offset, scale = 16 * 8, 2**16 * 255 // 219
    if full_range:
        offset, scale = 0, 2**16
        shares = [int(math.copysign(abs(share) * 224 // 255, share)) for share in shares]  # towards zero
    rounded = [(share + 4) >> 3 for share in (scale, *shares)]  # from 1/65536 to 1/8192, halves up
    return torch.tensor([offset, *rounded], dtype=torch.int32, device="cpu").view(4, 2)


@dataclass(frozen=True, eq=False)
class YUVFrames:
    """A batch of N frames of H × W pixels in YUV 4:2:0, 8 bits: NV12, I420 and similar layouts, told apart by strides.

    A single frame gets a batch dimension. All tensors are on one device, and any strides are served. A CUDA graph reads
    the three at each replay, so that a frame of another matrix needs no other graph.

    Raises:
        InputError: A tensor is not as below.

    Examples:
        >>> grey = torch.full((4, 6), 126, dtype=torch.uint8), torch.full((2, 3, 2), 128, dtype=torch.uint8)
        >>> frames = YUVFrames(*grey, yuv_conversion("bt709", full_range=False))
        >>> frames.to_rgb().shape, frames.to_rgb().unique()
        (torch.Size([1, 4, 6, 3]), tensor([128], dtype=torch.uint8))
    """

    luma: torch.Tensor
    """uint8 [N, H, W]: Y, of at least one pixel."""
    chroma: torch.Tensor
    """uint8 [N, ceil(H / 2), ceil(W / 2), 2]: U and V."""
    conversion: torch.Tensor
    """int32 [N, 4, 2], or [4, 2] for all frames; each frame's numbers contiguous, as `yuv_conversion` makes them."""

    def __post_init__(self) -> None:
        _check_plane("luma", self.luma, "[H, W] or [N, H, W]", 2)
        is_single = self.luma.ndim == 2
        luma = self.luma[None] if is_single else self.luma
        batch, height, width = luma.shape
        expected = [*(() if is_single else (batch,)), (height + 1) // 2, (width + 1) // 2, 2]
        _check_plane("chroma", self.chroma, f"{expected} on {luma.device}", 3)
        if [*self.chroma.shape] != expected or self.chroma.device != luma.device:
            raise InputError(
                f"chroma must be uint8 {expected} on {luma.device}, like luma {[*self.luma.shape]}, "
                f"got {describe(self.chroma)}."
            )
        _check_conversion(self.conversion, batch, luma.device)
        object.__setattr__(self, "luma", luma)
        object.__setattr__(self, "chroma", self.chroma[None] if is_single else self.chroma)
        object.__setattr__(self, "conversion", self.conversion.expand(batch, 4, 2))

    @staticmethod
    def within(memory: torch.Tensor, conversion: torch.Tensor) -> YUVFrames:
        """Frames in NV12 whose planes lie in one piece of memory, which they share.

        Args:
            memory: uint8 [H × 3 / 2, W] or [N, H × 3 / 2, W], H and W even: the rows of luma, then those of chroma, U
                and V in turn.
            conversion: As in `YUVFrames`.

        Raises:
            InputError: The memory can't hold such frames.
        """
        _check_plane("memory", memory, "[H × 3 / 2, W] or [N, H × 3 / 2, W], H and W even", 2)
        rows, width = memory.shape[-2:]
        if rows % 3 or width % 2:
            raise InputError(
                f"memory must be uint8 [H × 3 / 2, W] or [N, H × 3 / 2, W], H and W even, got {describe(memory)}; "
                "give planes of odd sizes to YUVFrames one by one."
            )
        height = rows // 3 * 2
        chroma = torch.unflatten(memory[..., height:, :], -1, (width // 2, 2))
        return YUVFrames(memory[..., :height, :], chroma, conversion)

    @property
    def device(self) -> torch.device:
        """Device of all three tensors."""
        return self.luma.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the samples, uint8; with `device` it tells an implementation whether it serves the frames."""
        return self.luma.dtype

    def __len__(self) -> int:
        return len(self.luma)

    def to(self, device: torch.device) -> YUVFrames:
        """The frames on another device; the same memory if they are there already."""
        return YUVFrames(*(tensor.to(device) for tensor in (self.luma, self.chroma, self.conversion)))

    def to_rgb(self) -> torch.Tensor:
        """uint8 [N, H, W, 3], RGB: the definition of the conversion."""
        height, width = self.luma.shape[1:]
        offset, scale = self.conversion[:, 0, :, None, None].unbind(1)
        luma = ((8 * self.luma.int() - offset) * scale) >> 16
        differences = 8 * self.chroma.int() - 1024
        products = (differences.unsqueeze(3) * self.conversion[:, None, None, 1:]) >> 16  # [N, h, w, 3, 2]
        shifts = products[..., 0] + products[..., 1]
        shifts = shifts.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :height, :width]
        return (luma.unsqueeze(-1) + shifts).clamp(0, 255).byte()


def _check_plane(name: str, plane: object, shape: str, dimensions: int) -> None:
    """Raise InputError unless a plane is uint8 with `dimensions` axes or one more, not empty, and below 2³¹."""
    if (
        not isinstance(plane, torch.Tensor)
        or plane.dtype != torch.uint8
        or plane.ndim not in (dimensions, dimensions + 1)
        or 0 in plane.shape[-dimensions:]
    ):
        raise InputError(f"{name} must be uint8 {shape} of at least one pixel, got {describe(plane)}.")
    last = zip(plane.shape[1 - dimensions :], plane.stride()[1 - dimensions :], strict=True)
    if max(*plane.shape, *plane.stride(), sum((size - 1) * stride for size, stride in last)) > _MOST:
        raise InputError(
            f"{name} must have sizes, strides and rows of at most {_MOST:,} bytes, "
            f"got {describe(plane)} with strides {plane.stride()}."
        )


def _check_conversion(conversion: object, batch: int, device: torch.device) -> None:
    if (
        not isinstance(conversion, torch.Tensor)
        or conversion.dtype != torch.int32
        or tuple(conversion.shape) not in ((4, 2), (batch, 4, 2))
        or conversion.device != device
        or conversion.stride()[-2:] != (2, 1)
    ):
        expected = f"a contiguous int32 tensor [4, 2] or [{batch}, 4, 2] on {device}, as yuv_conversion makes it"
        raise InputError(f"conversion must be {expected}, got {describe(conversion)}.")
