"""Bilinear resizing of channels-last feature maps."""

from __future__ import annotations

import torch

from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.gpu import make_op
from maskjet.ops.record import check_pixels, is_pair
from maskjet.ops.resize_pixels import reference


def resize_pixels(
    image: torch.Tensor, *, size: tuple[int, int], implementation: Implementation = "auto"
) -> torch.Tensor:
    """Resize feature maps bilinearly, in float32.

    Filter: half-pixel centres and no antialias, as `interpolate` of PyTorch with mode="bilinear". On a GPU it is one
    launch on the current stream, which never waits.

    Args:
        image: float16 or bfloat16 [B, H, W, C], contiguous, of at least one pixel; C is a power of two, at most 512.
        size: (h, w) of the result, in pixels, at least 1.
        implementation: "auto", "reference" or "triton".

    Returns:
        Of the image's type, [B, h, w, C].

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these tensors.

    Equal to the reference within an ULP of the largest value of a pixel.

    Examples:
        >>> image = torch.tensor([0.0, 4.0], dtype=torch.float16).view(1, 1, 2, 1)
        >>> resize_pixels(image, size=(1, 4)).flatten().tolist()
        [0.0, 1.0, 3.0, 4.0]
    """
    check_pixels(image, may_be_empty=False)
    if not is_pair(size) or min(size) < 1:
        raise InputError(f"size must be (h, w), at least 1 each, got {size!r}.")
    out = torch.empty(len(image), *size, image.shape[3], dtype=image.dtype, device=image.device)
    RECORD.choose(implementation, image).run(image, out=out)
    return out


RECORD = make_op(resize_pixels, reference.resize_pixels)
