"""The place where an implementation of encode_masks leaves a batch's strings."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.ops.record import FALLBACKS


class Strings:
    """The strings of a batch, as made on the host; on a GPU see `triton.DeviceStrings`.

    Args:
        batch: Images.
        masks: Most masks of an image.
        width: Width of the images, in pixels.
        device: Device of the memory.
        lead: Bytes at the start of the memory that are left to the caller; a multiple of 4.
        fallbacks: Counts slower paths.
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
        """uint8: to be copied to the host for `read`."""
        self.on_host: list[list[bytes]] | None = None
        """Per image the string of each mask, if they were made on the host."""

    def read(self, copied: NDArray[np.uint8], images: int) -> list[list[bytes]]:  # noqa: ARG002
        """The strings of the first images.

        Args:
            copied: `memory` on the host, when the device is done.
            images: How many images to read.
        """
        assert self.on_host is not None
        return self.on_host[:images]
