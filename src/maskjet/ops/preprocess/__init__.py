"""Frames to network input: resize, reorder channels, scale and normalise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch

from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.canvas import Letterbox, stretch
from maskjet.ops.gpu import make_op
from maskjet.ops.preprocess import cpu, reference
from maskjet.ops.preprocess.yuv import YUVFrames
from maskjet.ops.record import FLOATS, Variant, describe, needs_cpu
from maskjet.spec import LetterboxPlace

Order = Literal["rgb", "bgr"]
Filter = Literal["bilinear", "cv2", "antialias"]
_WIDEST = (2**31 - 1) // 3  # kernels count the bytes of a row in 32 bits


def preprocess(
    frames: torch.Tensor | YUVFrames,
    out: torch.Tensor | None = None,
    *,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    order: Order = "rgb",
    dtype: torch.dtype = torch.float32,
    resample: Filter = "bilinear",
    letterbox: Letterbox | int | None = None,
    implementation: Implementation = "auto",
) -> torch.Tensor:
    """Resize frames to the network's input size and normalise them.

    Filter: bilinear, half-pixel centres, no antialias, as rfdetr 1.11 `predict`. `resample="cv2"` resizes the uint8
    frame as `cv2.resize(INTER_LINEAR)` instead, rounding to uint8 before it normalises; `resample="antialias"` averages
    all pixels under a triangle, as torchvision's `resize(antialias=True)` does of floats. On a GPU it is one launch on
    the current stream, which never waits, allocates nothing if `out` is given, and can be captured in a CUDA graph. YUV
    is converted to bytes of RGB pixel by pixel on the way, as swscale does it, so that the result is that of the
    converted frame.

    Args:
        frames: uint8 [H, W, 3] or [N, H, W, 3] of any strides; or `YUVFrames`, such as NV12.
        out: float32, float16 or bfloat16 [N, 3, h, w] on the frames' device; overwritten. None allocates it.
        size: (h, w) of the input, in pixels, at least 1.
        mean: One per RGB channel, on the 0..1 scale.
        std: One per RGB channel, on the 0..1 scale, above 0.
        order: Channel order of the frames, "rgb" for `YUVFrames`; the output is RGB.
        dtype: Type of the output if `out` is None.
        resample: "bilinear" or "antialias" on floats, or "cv2" on bytes.
        letterbox: None stretches the frame to the input. `ops.Letterbox` keeps the frame's aspect ratio and pads;
            a byte value, 0..255, is a centred one of that grey. `Letterbox.region` gives the frame's place.
        implementation: "auto", "reference", "triton" or "cpu".

    Returns:
        `out` [N, 3, h, w]: (resized / 255 - mean) / std.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these frames.

    Equal to the reference within 4.8e-7 in float32 and one ULP in the half types. The reference equals rfdetr 1.11.2's
    preprocessing bit for bit; with "cv2", `cv2.resize`. (PyTorch's own result depends on where it runs: a GPU fuses
    the product and sum of source positions, and a single CPU thread rounds them differently from two; either changes
    the result by 3e-5 at 1080p. The bound holds on the frames' own device, for two threads and more.) With "antialias"
    it is 5e-6 from the reference on a CPU, as sums over hundreds of pixels are rounded in another order. PyTorch's own
    antialias on a GPU is up to 4e-4 from both.

    Examples:
        >>> frame = torch.full((4, 6, 3), 255, dtype=torch.uint8)
        >>> preprocess(frame, size=(2, 2), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)).unique()
        tensor([1.])
    """
    if isinstance(frames, YUVFrames):
        sample = frames.luma
        if order != "rgb":
            raise InputError(f"order must be 'rgb' for YUVFrames, got {order!r}.")
    else:
        sample = frames = check_frames(frames)
    batch, height, width = sample.shape[:3]
    if len(size) != 2 or min(size) < 1:
        raise InputError(f"size must be (height, width) of at least 1 pixel, got {size}.")
    size = int(size[0]), int(size[1])
    if out is None:
        out = torch.empty((batch, 3, *size), dtype=dtype, device=sample.device)
    shape = (batch, 3, *size)
    if tuple(out.shape) != shape or out.dtype not in FLOATS or out.device != sample.device:
        wanted = f"float32, float16 or bfloat16 {list(shape)} on {sample.device}"
        raise InputError(f"out must be {wanted}, got {describe(out)}.")
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != 3 or not all(map(math.isfinite, values)) or (name == "std" and min(values) <= 0):
            expected = "3 numbers above 0" if name == "std" else "3 numbers"
            raise InputError(f"{name} must be {expected}, got {tuple(values)}.")
    for name, value, known in (("order", order, ("rgb", "bgr")), ("resample", resample, get_args(Filter))):
        if value not in known:
            raise InputError(f"{name} must be one of {known}, got {value!r}.")
    region = stretch(size) if letterbox is None else _check_letterbox(letterbox).region((height, width), size)
    run = RECORD.choose(implementation, sample).run
    normalisation = {"mean": tuple(map(float, mean)), "std": tuple(map(float, std))}
    run(frames, out, region=region, **normalisation, order=order, resample=resample)
    return out


def check_frames(frames: torch.Tensor) -> torch.Tensor:
    """Check RGB frames, and give them a batch dimension.

    Raises:
        InputError: They are not uint8 [H, W, 3] or [N, H, W, 3] of at least one pixel, or too wide.
    """
    is_right = isinstance(frames, torch.Tensor) and frames.dtype == torch.uint8 and frames.ndim in (3, 4)
    if not is_right or frames.shape[-1] != 3 or 0 in frames.shape[-3:-1]:
        wanted = "a uint8 tensor [H, W, 3] or [N, H, W, 3] of at least one pixel, or YUVFrames"
        raise InputError(f"frames must be {wanted}, got {describe(frames)}.")
    if frames.shape[-2] > _WIDEST:
        raise InputError(f"frames must be at most {_WIDEST:,} pixels wide, got {frames.shape[-2]:,}.")
    return frames if frames.ndim == 4 else frames[None]


def _check_letterbox(letterbox: Letterbox | int) -> Letterbox:
    given = letterbox if isinstance(letterbox, Letterbox) else Letterbox(color=(letterbox,) * 3)
    if given.place not in get_args(LetterboxPlace) or not all(byte in range(256) for byte in given.color):
        raise InputError(f"letterbox must be a Letterbox, a byte value, 0..255, or None to stretch, got {letterbox}.")
    return given


RECORD = make_op(
    preprocess, Variant(reference.preprocess), dtypes=(torch.uint8,), cpu=Variant(cpu.preprocess, needs_cpu)
)
