"""RoIAlign over a feature pyramid; the size of a box decides its level."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from maskjet.checks import as_int, check_count
from maskjet.config import Implementation
from maskjet.errors import InputError, translate_errors
from maskjet.ops.gpu import make_op
from maskjet.ops.record import FLOATS, Variant, describe
from maskjet.ops.roi_align import reference

_MOST_LEVELS = 4


def roi_align(
    boxes: torch.Tensor,
    features: Sequence[torch.Tensor],
    *,
    scales: Sequence[float],
    size: int,
    implementation: Implementation = "auto",
) -> torch.Tensor:
    """Average the features in each bin of a grid over each box.

    Computes torchvision's `MultiScaleRoIAlign` with a sampling ratio of 2 and its own canonical level: a box of 224²
    pixels is pooled at a scale of 1/16, one of half the side at twice that scale. Each bin is the mean of 2 × 2
    bilinear samples. torchvision finds, pools and scatters each level's boxes; here each box looks up its level, so
    shapes don't depend on values. On a GPU it is one launch, after copies of features that are not channels-last and of
    tensors that are strided or not aligned to 16 bytes; it never waits and can be captured in a CUDA graph.

    Args:
        boxes: float32 [B, N, 4] xyxy, in pixels of the network's input.
        features: One to four levels, finest first: float32, float16 or bfloat16 [B, C, H, W]; fastest channels-last.
        scales: One per level, feature pixels per input pixel: powers of two, each half the one before, such as 0.25.
        size: Bins along each side, at least 1.
        implementation: "auto", "reference", which is torchvision's, or "triton".

    Returns:
        [B × N, C, size, size] of the features' type, channels-last in memory.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these features.
        MissingDependencyError: The reference needs torchvision.

    Equal to torchvision's within rounding. A box with one negative side is pooled from the finest level, where
    torchvision leaves zeros. A box whose width or height on its level is not finite, as with a NaN, gives zeros, where
    torchvision reads arbitrary memory. A feature that is not finite spreads to every bin that reads it, even with
    weight 0.
    """
    if not isinstance(features, list | tuple) or not 1 <= len(features) <= _MOST_LEVELS:
        got = len(features) if isinstance(features, list | tuple) else type(features).__name__
        raise InputError(f"features must be a list of 1..{_MOST_LEVELS} tensors, one per level, got {got}.")
    first = features[0]
    for level, feature in enumerate(features):
        if not isinstance(feature, torch.Tensor):
            raise InputError(f"features[{level}] must be a tensor, got {type(feature).__name__}.")
        is_alike = (feature.dtype, feature.device, feature.shape[:2]) == (first.dtype, first.device, first.shape[:2])
        if feature.dtype not in FLOATS or feature.ndim != 4 or not is_alike or 0 in feature.shape[1:]:
            wanted = "float32, float16 or bfloat16 [B, C, H, W], of one type, batch and device"
            raise InputError(f"features[{level}] must be {wanted}, got {describe(feature)}.")
    is_alike = isinstance(boxes, torch.Tensor) and boxes.dtype == torch.float32 and boxes.device == first.device
    if not is_alike or boxes.ndim != 3 or boxes.shape[2] != 4 or len(boxes) != len(first):
        raise InputError(f"boxes must be float32 [{len(first)}, N, 4] on {first.device}, got {describe(boxes)}.")
    with translate_errors(InputError, "scales must be numbers, one per level"):
        exponents = [math.log2(scale) if scale > 0 else math.nan for scale in scales]
    expected = [exponents[0] - level for level in range(len(features))] if exponents else []
    if exponents != expected or not exponents[0].is_integer():
        wanted = f"one power of two per level, {len(features)}, each half the one before"
        raise InputError(f"scales must be {wanted}, got {tuple(scales)}.")
    check_count("size", as_int(size))
    pooled: torch.Tensor = RECORD.choose(implementation, first).run(
        list(features), boxes, finest=round(-exponents[0]), size=int(size)
    )
    return pooled


RECORD = make_op(roi_align, Variant(reference.roi_align), dtypes=FLOATS)
