"""Whether cuDNN's convolutions in float32 round to TF32, which is a setting of the whole process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def convolutions_in_tf32(is_allowed: bool) -> Iterator[None]:
    """Allow it, as PyTorch does, or not; as it was before at the end."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
