"""The result of nms."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Kept:
    """Which boxes stay, most confident first; B images, K = max_output rows each."""

    count: torch.Tensor
    """int32 [B]: boxes per image, at most K."""
    index: torch.Tensor
    """int32 [B, K]: their positions among the image's boxes, ascending; rows at and past `count` are undefined."""
