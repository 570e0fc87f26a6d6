"""How each op is compared: inputs on which all implementations must agree, how closely, and what any of them must do.

One test (`tests/ops/test_records.py`) and one benchmark (`benchmarks/ops.py`) walk `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tests.ops.cases import (
    attention,
    deformable_attention,
    depthwise_norm,
    embed_patches,
    encode_masks,
    linear,
    mask_logits,
    nms,
    paint,
    preprocess,
    rank_tokens,
    refine_boxes,
    resize_pixels,
    roi_align,
    select,
)


@dataclass(frozen=True)
class Checks:
    """What is known about an op besides its record."""

    cases: Mapping[str, Callable[[torch.device], dict[str, Any]]]
    """Cases by name; each builds the keyword arguments of the op on a device; same inputs on every call."""
    tolerance_used: Callable[[dict[str, Any], Any, Any], float]
    """Takes (arguments, expected, actual); returns the largest difference as a share of its tolerance, where at most 1
    counts as equal. The tolerances per dtype, and their reasons, stand beside this function."""
    bytes_moved: Callable[[dict[str, Any]], int]
    """Takes the arguments; returns the bytes that any implementation must move. Over the bandwidth: the least time."""
    flops: Callable[[dict[str, Any]], int] | None = None
    """Takes the arguments; returns the multiplications and additions of its matrix products, which tensor cores do.
    Over their rate: another least time. None for ops without."""


CHECKS: Mapping[str, Checks] = {
    module.__name__.rpartition(".")[2]: Checks(
        module.CASES, module.tolerance_used, module.bytes_moved, getattr(module, "flops", None)
    )
    for module in (
        *(preprocess, select, encode_masks, nms, roi_align, paint),
        *(linear, attention, embed_patches, rank_tokens, refine_boxes, deformable_attention),
        *(resize_pixels, depthwise_norm, mask_logits),
    )
}
"""By the op's name, in the order of `tests.ops.network.OPS`."""
