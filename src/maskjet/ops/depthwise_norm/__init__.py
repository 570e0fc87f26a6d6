"""A depthwise 3 × 3 convolution with the norm behind it."""

from __future__ import annotations

import torch

from maskjet.config import Implementation
from maskjet.ops.depthwise_norm import reference
from maskjet.ops.gpu import make_op
from maskjet.ops.record import check_like, check_pixels


def depthwise_norm(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float = 1e-6,
    implementation: Implementation = "auto",
) -> torch.Tensor:
    """Convolve each channel, 3 × 3 with zero padding, and normalise each pixel over its channels.

    The norm has no affine, which is folded into the layer behind it. On a GPU it is one launch on the current stream,
    which never waits.

    Args:
        image: float16 or bfloat16 [B, H, W, C], contiguous; C is a power of two, at most 512.
        weight: float32 [9, C], contiguous: the kernel row by row.
        bias: float32 [C].
        eps: Added to the variance of a pixel.
        implementation: "auto", "reference" or "triton".

    Returns:
        The normalised convolution, of the image's type and shape.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these tensors.

    Equal to the reference within an ULP of the largest value of a pixel.

    Examples:
        >>> image = torch.ones(1, 3, 3, 2, dtype=torch.float16)
        >>> weight = torch.tensor([[1.0, 3.0]] * 9)
        >>> depthwise_norm(image, weight, torch.zeros(2))[0, 0, 0].tolist()
        [-1.0, 1.0]
    """
    check_pixels(image, may_be_empty=True)
    channels = image.shape[3]
    check_like("weight", weight, torch.float32, (9, channels), image.device)
    check_like("bias", bias, torch.float32, (channels,), image.device)
    out = torch.empty_like(image)
    RECORD.choose(implementation, image).run(image, weight, bias, eps=float(eps), out=out)
    return out


RECORD = make_op(depthwise_norm, reference.depthwise_norm)
