"""Inputs on which every implementation of preprocess must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from maskjet.ops.canvas import Letterbox
from maskjet.ops.preprocess.yuv import Matrix, YUVFrames, yuv_conversion
from maskjet.spec import IMAGENET_MEAN, IMAGENET_STD

# One ULP at the largest value, 2.64; two in float32, where both sides round twice.
_TOLERANCE = {torch.float32: 4.8e-7, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}

_SUMMED = 4.5e-6  # sums of up to a thousand products, in another order; on a GPU positions are rounded otherwise, too


def _case(shape: tuple[int, ...], size: tuple[int, int], **options: Any) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(sum(shape))
        frames = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device)
        return {"frames": frames, "size": size, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, **options}

    return build


def _strided(device: torch.device) -> dict[str, Any]:
    inputs = _case((9, 93, 3), (10, 120))(device)
    return {**inputs, "frames": inputs["frames"][:, 2:79]}


def _batch_view(device: torch.device) -> dict[str, Any]:
    inputs = _case((5, 7, 11, 3), (8, 124))(device)
    return {**inputs, "frames": inputs["frames"][::2]}


def _yuv(
    shape: tuple[int, int, int],
    size: tuple[int, int],
    *colours: tuple[Matrix, bool],
    is_planar: bool = False,
    gap: int = 0,
    **options: Any,
) -> Callable[[torch.device], dict[str, Any]]:
    """Frames in one piece of memory with gaps after their rows; `shape` is (N, H, W), even, `colours` one per frame."""

    def build(device: torch.device) -> dict[str, Any]:
        batch, height, width = shape
        generator = torch.Generator().manual_seed(sum(shape))
        memory = torch.randint(
            0, 256, (batch, height * 3 // 2, width + gap), dtype=torch.uint8, generator=generator
        ).to(device)
        conversion = torch.stack([yuv_conversion(matrix, full_range=is_full) for matrix, is_full in colours]).to(device)
        frames = (i420 if is_planar else YUVFrames.within)(memory[..., :width], conversion)
        return {"frames": frames, "size": size, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, **options}

    return build


def i420(memory: torch.Tensor, conversion: torch.Tensor) -> YUVFrames:
    """Frames in I420 in one piece of memory: the rows of luma, then all of U, then all of V."""
    rows, width = memory.shape[-2:]
    height = rows // 3 * 2
    planes = torch.unflatten(memory[..., height:, :].flatten(-2), -1, (2, height // 2, width // 2))
    return YUVFrames(memory[..., :height, :], planes.movedim(-3, -1), conversion)


def _odd(height: int, width: int, size: tuple[int, int], **options: Any) -> Callable[[torch.device], dict[str, Any]]:
    """One NV12 frame whose planes lie apart; odd sides have half a chroma sample at the far border."""

    def build(device: torch.device) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(height + width)
        luma, chroma = (
            torch.randint(0, 256, side, dtype=torch.uint8, generator=generator).to(device)
            for side in ((height, width), ((height + 1) // 2, (width + 1) // 2, 2))
        )
        frames = YUVFrames(luma, chroma, yuv_conversion("bt709", full_range=False).to(device))
        return {"frames": frames, "size": size, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, **options}

    return build


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "one pixel": _case((1, 1, 3), (4, 4)),
    "to one pixel": _case((5, 3, 3), (1, 1)),
    "same size": _case((16, 16, 3), (16, 16)),
    "shrink": _case((154, 196, 3), (10, 120)),
    "grow, odd": _case((7, 13, 3), (11, 119)),
    "one row": _case((1, 140, 3), (13, 117)),
    "batch": _case((3, 11, 8, 3), (9, 121)),
    "small output": _case((54, 96, 3), (24, 24)),
    "bgr": _case((100, 120, 3), (99, 30), order="bgr"),
    "strided rows": _strided,
    "strided batch": _batch_view,
    "float16": _case((20, 30, 3), (7, 122), dtype=torch.float16),
    "bfloat16": _case((20, 30, 3), (122, 7), dtype=torch.bfloat16),
    "letterbox, wide": _case((9, 96, 3), (16, 124), letterbox=114),
    "letterbox, tall": _case((90, 8, 3), (124, 16), letterbox=0, dtype=torch.float16),
    "letterbox, batch, bgr": _case((2, 61, 7, 3), (122, 16), letterbox=255, order="bgr"),
    "letterbox, top left, coloured": _case((9, 96, 3), (16, 124), letterbox=Letterbox((200, 7, 90), "top-left")),
    "letterbox, coloured": _case((90, 8, 3), (124, 16), letterbox=Letterbox((0, 255, 31))),
    "cv2": _case((53, 37, 3), (24, 24), resample="cv2"),
    "cv2, grow": _case((7, 13, 3), (30, 41), resample="cv2"),
    "cv2, one row": _case((1, 5, 3), (20, 33), resample="cv2"),
    "cv2, half": _case((40, 48, 3), (20, 24), resample="cv2"),
    "cv2, letterbox": _case((20, 31, 3), (24, 24), resample="cv2", letterbox=114),
    "cv2, bgr": _case((18, 32, 3), (24, 24), resample="cv2", order="bgr"),
    "antialias": _case((154, 196, 3), (10, 120), resample="antialias"),
    "antialias, to one pixel": _case((5, 3, 3), (1, 1), resample="antialias"),
    "antialias, grow, bgr": _case((2, 7, 13, 3), (11, 41), resample="antialias", order="bgr"),
    "antialias, one row": _case((1, 140, 3), (13, 17), resample="antialias", dtype=torch.float16),
    "antialias, letterbox": _case((90, 8, 3), (24, 16), resample="antialias", letterbox=Letterbox((0, 255, 31))),
    "nv12": _yuv((1, 54, 96), (10, 120), ("bt709", False)),
    "nv12, full range": _yuv((1, 30, 40), (9, 122), ("bt601", True), dtype=torch.float16),
    "nv12, three matrices": _yuv((3, 20, 28), (8, 124), ("bt601", False), ("bt709", True), ("bt2020", False)),
    "nv12, strided rows": _yuv((2, 36, 50), (6, 124), ("bt709", False), ("bt601", False), gap=14, dtype=torch.bfloat16),
    "nv12, odd": _odd(37, 53, (10, 120)),
    "nv12, one pixel": _odd(1, 1, (4, 4)),
    "nv12, letterbox": _yuv((1, 8, 96), (16, 124), ("bt601", False), letterbox=114),
    "nv12, letterbox, coloured": _yuv(
        (2, 8, 96), (16, 124), ("bt709", False), ("bt601", True), letterbox=Letterbox((200, 7, 90), "top-left")
    ),
    "nv12, cv2": _yuv((1, 40, 30), (24, 24), ("bt709", False), resample="cv2"),
    "nv12, cv2, odd, grow": _odd(7, 13, (30, 41), resample="cv2"),
    "nv12, antialias": _yuv((2, 54, 96), (10, 20), ("bt709", False), ("bt601", True), resample="antialias"),
    "nv12, antialias, odd": _odd(37, 53, (10, 60), resample="antialias", letterbox=7),
    "i420": _yuv((2, 26, 34), (9, 124), ("bt709", False), ("bt601", True), is_planar=True),
}


def tolerance_used(inputs: dict[str, Any], expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference, in tolerances of the output's type; NaN counts as infinite."""
    difference = (expected.float() - actual.float()).abs().nan_to_num(nan=float("inf"))
    summed = _SUMMED if inputs.get("resample") == "antialias" else 0.0
    return float(difference.max()) / (_TOLERANCE[expected.dtype] + summed)


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of the output, and of the source: 4 per output value, at most the whole frame."""
    frames, (height, width) = inputs["frames"], inputs["size"]
    if isinstance(frames, YUVFrames):
        batch, whole = len(frames), (frames.luma.numel() + frames.chroma.numel()) // len(frames)
    else:
        whole = frames.shape[-3] * frames.shape[-2] * 3
        batch = frames.numel() // whole
    outputs = 3 * height * width
    itemsize = inputs.get("dtype", torch.float32).itemsize
    return int(batch * (min(4 * outputs, whole) + outputs * itemsize))
