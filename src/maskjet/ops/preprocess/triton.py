"""preprocess on an NVIDIA GPU: one launch from the frame's bytes to the network's input buffer.

RGB frames whose pixels are not contiguous are first copied. YUV is converted tap by tap, in registers.

Each program computes a tile of output pixels, all three channels, each from four source pixels. Sizes, strides and
normalisation are run-time arguments, so another frame size compiles nothing.
"""

from __future__ import annotations

import torch
import triton

from maskjet.ops.canvas import Region
from maskjet.ops.gpu import Launcher, on_device
from maskjet.ops.preprocess.kernels import preprocess_kernel, preprocess_yuv_kernel
from maskjet.ops.preprocess.yuv import YUVFrames

_TILE_HW = (4, 32)

# OpenCV rounds the product in a source position before it subtracts; ATen's kernels fuse the two.
_launch = {
    name: Launcher(preprocess_kernel, num_warps=4, enable_fp_fusion=name == "bilinear") for name in ("bilinear", "cv2")
}
_launch_yuv = {
    name: Launcher(preprocess_yuv_kernel, num_warps=4, enable_fp_fusion=name == "bilinear")
    for name in ("bilinear", "cv2")
}


def preprocess(
    frames: torch.Tensor | YUVFrames,
    out: torch.Tensor,
    *,
    region: Region,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    order: str,
    resample: str,
) -> None:
    """Write (resized / 255 - mean) / std of uint8 frames [N, H, W, 3] into out [N, 3, h, w]; see `ops.preprocess`."""
    height, width = out.shape[2:]
    grid = (triton.cdiv(width, _TILE_HW[1]), triton.cdiv(height, _TILE_HW[0]), len(out))
    constants = {"IS_CV2": resample == "cv2", "TILE_HEIGHT": _TILE_HW[0], "TILE_WIDTH": _TILE_HW[1]}
    with on_device(out.device):
        if isinstance(frames, YUVFrames):
            _launch_yuv[resample](
                grid,
                (out.device, out.dtype),
                frames.luma,
                frames.chroma,
                frames.conversion,
                out,
                *frames.luma.shape[1:],
                height,
                width,
                *region.box,
                *frames.luma.stride(),
                *frames.chroma.stride(),
                frames.conversion.stride(0),
                *out.stride(),
                mean,
                std,
                region.padding,
                **constants,
            )
            return
        if frames.stride(3) != 1 or frames.stride(2) != 3:
            frames = frames.contiguous()
        _launch[resample](
            grid,
            (out.device, out.dtype),
            frames,
            out,
            *frames.shape[1:3],
            height,
            width,
            *region.box,
            *frames.stride()[:2],
            *out.stride(),
            mean,
            std,
            region.padding,
            IS_BGR=order == "bgr",
            **constants,
        )
