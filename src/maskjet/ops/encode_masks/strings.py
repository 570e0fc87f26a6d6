"""Holder of the strings that an implementation of encode_masks makes for a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.ops.record import FALLBACKS

Cut = Callable[[], list[bytes]]
"""Gives the strings of an image; any number of times, in any thread."""


class Strings:
    """COCO strings of a batch, made on the host; `triton.DeviceStrings` holds those made on a GPU.

    Args:
        batch: Number of images.
        masks: Largest number of masks per image.
        width: Width of the images, in pixels.
        device: Device of the memory.
        lead: Bytes at the start of the memory that are left to the caller; a multiple of 4.
        fallbacks: Counter of slower paths taken.
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
    ) -> None:
        self.fallbacks = fallbacks
        self.memory = torch.empty(lead, dtype=torch.uint8, device=device)
        """uint8: the caller copies it to the host and gives the copy to `keep`."""
        self.on_host: list[list[bytes]] | None = None
        """String of each mask, per image, if they were made on the host; else None."""

    def keep(self, copied: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Copy a finished copy of `memory` on the host, as far as it is used; `copied` may be overwritten on return."""
        return copied.copy()

    def read(self, kept: NDArray[np.uint8], images: int) -> list[Cut]:  # noqa: ARG002
        """Make everything ready to cut the strings of the first images.

        Args:
            kept: What `keep` returned; it must not change any more.
            images: How many images to read, at least 1.
        """
        assert self.on_host is not None
        return [partial(list, strings) for strings in self.on_host[:images]]
