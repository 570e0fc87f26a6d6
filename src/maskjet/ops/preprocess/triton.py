"""preprocess on an NVIDIA GPU: one launch from the frame's bytes to the network's input buffer.

YUV is converted tap by tap, in registers. Each program computes a tile of output pixels, all three channels, each from
four source pixels, or with antialias from all those under a triangle. Sizes and strides are run-time arguments, so
another frame size compiles nothing; or data on the device, so that a captured graph serves frames of any size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton

from maskjet.ops.canvas import Region
from maskjet.ops.frame_table import DeviceFrames
from maskjet.ops.gpu import Launcher, on_device
from maskjet.ops.preprocess.kernels import preprocess_antialias_kernel, preprocess_kernel, preprocess_yuv_kernel
from maskjet.ops.preprocess.yuv import YUVFrames

_TILE_HW = (4, 32)
_MOST = 2**31 - 1  # kernels count the bytes of a row in 32 bits
_UNREAD = (0,) * 8  # placeholders: with a table, kernels read these values from its rows

# OpenCV rounds the product in a source position before it subtracts; ATen's kernels fuse the two.
_launch = {
    (name, is_yuv): Launcher(kernel, num_warps=4, enable_fp_fusion=name != "cv2")
    for is_yuv, kernel in enumerate((preprocess_kernel, preprocess_yuv_kernel))
    for name in ("bilinear", "cv2")
}
_launch_antialias = Launcher(preprocess_antialias_kernel, num_warps=4)


def preprocess(
    frames: torch.Tensor | YUVFrames | DeviceFrames,
    out: torch.Tensor,
    *,
    region: Region | None = None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    order: str,
    resample: str,
) -> None:
    """Write (resized / 255 - mean) / std of frames into out [N, 3, h, w]; see `ops.preprocess`.

    `DeviceFrames` may be of any sizes; their table says their regions, too.
    """
    height, width = out.shape[2:]
    grid = (triton.cdiv(width, _TILE_HW[1]), triton.cdiv(height, _TILE_HW[0]), len(out))
    has_rows = isinstance(frames, DeviceFrames)
    planes: tuple[torch.Tensor, ...]
    sizes: Sequence[int]
    strides: Sequence[int]
    if isinstance(frames, DeviceFrames):
        rows, box, padding, is_yuv = frames.table.rows, _UNREAD[:4], frames.table.padding, frames.is_yuv
        planes, sizes, strides = (rows,) * (3 if is_yuv else 1), _UNREAD[:2], _UNREAD[: 8 if is_yuv else 4]
    else:
        assert region is not None
        rows, box, padding, is_yuv = out, region.box, region.padding, isinstance(frames, YUVFrames)
        planes, sizes, strides = _describe(frames, order)
    is_antialiased = resample == "antialias"
    if is_antialiased and not is_yuv:  # the kernel serves both
        planes, strides = planes * 3, (*strides[:3], 0, 0, 0, strides[3], 0)
    launch = _launch_antialias if is_antialiased else _launch[resample, is_yuv]
    flags = {"IS_YUV": is_yuv} if is_antialiased else {"IS_CV2": resample == "cv2"}
    with on_device(out.device):
        launch(
            grid,
            (out.device, out.dtype, has_rows, is_yuv),
            *planes,
            rows,
            out,
            *sizes,
            height,
            width,
            *box,
            *strides,
            *out.stride(),
            mean,
            std,
            padding,
            HAS_ROWS=has_rows,
            **flags,
            TILE_HEIGHT=_TILE_HW[0],
            TILE_WIDTH=_TILE_HW[1],
        )


def _describe(
    frames: torch.Tensor | YUVFrames, order: str
) -> tuple[tuple[torch.Tensor, ...], Sequence[int], Sequence[int]]:
    """The planes of frames, their height and width, and all strides, as the kernels take them."""
    if isinstance(frames, YUVFrames):
        strides = (*frames.luma.stride(), *frames.chroma.stride(), frames.conversion.stride(0))
        return (frames.luma, frames.chroma, frames.conversion), frames.luma.shape[1:], strides
    _, height, width, _ = frames.shape
    _, _, across, channel = frames.stride()
    if (width - 1) * across + 2 * channel > _MOST:
        frames = frames.contiguous()
    if order == "rgb":
        return (frames,), (height, width), frames.stride()
    return (frames[..., 2:],), (height, width), (*frames.stride()[:3], -frames.stride(3))
