"""Where a graph leaves what it found: detections and strings in one piece of memory, so that one copy brings both."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.ops.encode_masks import triton as encode_masks
from maskjet.ops.selection import FoundRows, MaskQueries, Selection


class Results:
    """Memory on a GPU for the results of a batch, and how to read a copy of it.

    Args:
        batch: Images.
        rows: Most detections of an image.
        size_hw: Of the images.
        device: Where.
        has_masks: Whether there are strings.
        has_marks: Whether there is a mark for each image.
    """

    def __init__(
        self,
        batch: int,
        rows: int,
        size_hw: tuple[int, int],
        device: torch.device,
        *,
        has_masks: bool,
        has_marks: bool = False,
    ) -> None:
        self._shape, self._sizes = (batch, rows), [size_hw] * batch
        self._length = Selection.length(batch, rows)
        self._size = 4 * (self._length + has_marks * batch)  # of detections and marks, in bytes
        strings = encode_masks.Buffers.size_of_packed(batch, rows) if has_masks else 0
        memory = torch.empty(self._size + strings, dtype=torch.uint8, device=device)
        self._words = memory[: self._size].view(torch.int32)
        self.selection = Selection.within(self._words[: self._length], batch, rows)
        """To be written to."""
        self.memory = memory[: self._size]
        """uint8: what is to be copied, the detections and as much of the strings as is usual."""
        self._strings: encode_masks.Buffers | None = None
        self._encoded: tuple[torch.Tensor, MaskQueries] | None = None
        if has_masks:
            packed = memory[self._size :]
            self._strings = encode_masks.Buffers.allocate(batch, rows, size_hw[1], device, packed=packed)
            self.memory = memory[: self._size + len(self._strings.head)]

    def fill(self, selection: Selection, is_marked: torch.Tensor) -> None:
        """Write a selection, and marks bool [B], in one launch; never waits."""
        fields = (selection.count, selection.query, selection.class_id, selection.confidence, selection.xyxy)
        words = [field.flatten().view(torch.int32) for field in fields]
        torch.cat([*words, is_marked.int()], out=self._words)

    def marked(self, copied: NDArray[np.uint8], images: int) -> list[bool]:
        """Whether each of the first images is marked in a copy of `memory`."""
        return [bool(mark) for mark in copied[4 * self._length : self._size].view(np.int32)[:images]]

    def encode(self, mask_logits: torch.Tensor, sizes_table: torch.Tensor, boxes: torch.Tensor | None = None) -> None:
        """Encode the masks of the selection; never waits.

        Args:
            mask_logits: [B, Q, h, w].
            sizes_table: The images' sizes on the device.
            boxes: As `MaskQueries.boxes`.
        """
        assert self._strings is not None
        queries = MaskQueries(self.selection.count, self.selection.query, mask_logits.shape[1], boxes)
        self._encoded = mask_logits, queries  # for masks that don't fit
        encode_masks.launch(mask_logits, queries, sizes_table, self._strings)

    def read(self, copied: NDArray[np.uint8], images: int) -> tuple[FoundRows, list[list[bytes]] | None]:
        """What was found in the first images, and its masks.

        Args:
            copied: `memory`, on the host, when all is done.
            images: How many.
        """
        found = Selection.rows_within(copied[: 4 * self._length].view(np.int32), *self._shape)
        if self._strings is None:
            return found, None
        assert self._encoded is not None
        written = encode_masks.read(copied[self._size :], self._strings, images)
        remade = encode_masks.encode_missing(*self._encoded, self._sizes, written)
        return found, written.by_image(remade)
