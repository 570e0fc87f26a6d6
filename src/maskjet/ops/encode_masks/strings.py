"""Output buffer of `encode_masks` for a batch of strings made on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.ops.memory import Scratch
from maskjet.ops.record import FALLBACKS

Cut = Callable[[], list[bytes]]
"""Returns an image's COCO strings; may be called repeatedly, from any thread."""


class Strings:
    """COCO strings of a batch, made on the host; `triton.DeviceStrings` holds those made on a GPU.

    The `lead` bytes at the start of the memory, a multiple of 4, are the caller's. Images are `width` pixels wide on
    average. Others may use the scratch memory between batches; None for memory of its own.
    """

    def __init__(
        self,
        batch: int,  # noqa: ARG002
        masks: int,  # noqa: ARG002
        width: int,  # noqa: ARG002
        device: torch.device,
        *,
        lead: int = 0,
        fallbacks: Counter[str] = FALLBACKS,
        scratch: Scratch | None = None,  # noqa: ARG002
    ) -> None:
        self.fallbacks = fallbacks
        self.memory = torch.empty(lead, dtype=torch.uint8, device=device)
        """uint8: the caller copies it to the host and gives the copy to `keep`."""
        self.on_host: list[list[bytes]] | None = None
        """String of each mask, per image, if they were made on the host; else None."""

    def fits(self, sizes_hw: Sequence[tuple[int, int]]) -> bool:  # noqa: ARG002
        """Whether the buffers serve images of these sizes, (height, width) in pixels."""
        return True

    def keep(self, copied: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Copy the used bytes of `copied`, a finished host copy of `memory` that may be overwritten on return."""
        return copied.copy()

    def read(self, kept: NDArray[np.uint8], images: int) -> list[Cut]:  # noqa: ARG002
        """Return a function per image, for the first `images`, that makes its strings.

        Args:
            kept: The result of `keep`; must not change afterwards.
            images: How many images to read, at least 1.
        """
        assert self.on_host is not None
        return [partial(list, strings) for strings in self.on_host[:images]]
