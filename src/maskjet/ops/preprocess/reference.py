"""The definition of preprocess, in plain PyTorch."""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from maskjet.ops.canvas import Region
from maskjet.ops.preprocess.yuv import YUVFrames


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
    top, left, height, width = region.box
    if isinstance(frames, YUVFrames):
        frames = frames.to_rgb()
    if order == "bgr":
        frames = frames.flip(-1)
    if resample == "cv2":
        frames = _resize_bytes(frames, height, width)
    images = frames.permute(0, 3, 1, 2).float()
    images = images / images.new_tensor(255)  # a tensor: CUDA would multiply by the reciprocal of a Python number
    if resample != "cv2":
        images = F.interpolate(images, size=(height, width), mode="bilinear", antialias=resample == "antialias")
    per_channel = (1, 3, 1, 1)
    inputs = images.new_tensor(region.padding).view(per_channel).repeat(len(frames), 1, *out.shape[2:])
    inputs[:, :, top : top + height, left : left + width] = images
    out.copy_((inputs - images.new_tensor(mean).view(per_channel)) / images.new_tensor(std).view(per_channel))


def _resize_bytes(frames: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Apply `cv2.resize(INTER_LINEAR)`, the definition of "cv2": uint8 [N, H, W, 3] to [N, height, width, 3]."""
    resized = [
        cv2.resize(np.ascontiguousarray(frame), (width, height), interpolation=cv2.INTER_LINEAR)
        for frame in frames.cpu().numpy()
    ]
    return torch.from_numpy(np.array(resized, np.uint8).reshape(-1, height, width, 3)).to(frames.device)
