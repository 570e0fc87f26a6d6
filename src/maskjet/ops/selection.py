"""What `select` returns and the mask ops take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from maskjet.errors import InputError

ImageSizes = Sequence[tuple[int, int]]
"""(height, width) in pixels, one per image of the batch."""


@dataclass(frozen=True)
class Selection:
    """Which queries of a batch became detections, most confident first; B images, K = max_detections rows each.

    Rows at and past an image's `count` are undefined.
    """

    count: torch.Tensor
    """int32 [B]: detections per image."""
    query: torch.Tensor
    """int32 [B, K]: the query each detection came from; a query may appear under several classes."""
    class_id: torch.Tensor
    """int32 [B, K]: the class, after the class map."""
    confidence: torch.Tensor
    """float32 [B, K]: 0..1, descending."""
    xyxy: torch.Tensor
    """float32 [B, K, 4]: pixels of the image, clamped to it."""

    def queries(self) -> list[torch.Tensor]:
        """The queries of each image as int32 [count] tensors; waits for the device to read the counts."""
        return [row[:count] for row, count in zip(self.query, self.count.tolist(), strict=True)]


def queries_by_image(query: Selection | Sequence[torch.Tensor], batch: int, queries: int) -> list[torch.Tensor]:
    """Check the `query` argument of a mask op and return it as one index tensor per image.

    Args:
        query: A `Selection`, or per image an integer [n] tensor of indices into the image's masks.
        batch: Images in the batch.
        queries: Masks per image; every index must be below it.

    Returns:
        Per image an int64 [n] tensor, on the device it came on.

    Raises:
        InputError: Wrong number of images, not a vector of integers, or an index out of range.
    """
    rows = query.queries() if isinstance(query, Selection) else list(query)
    if len(rows) != batch:
        raise InputError(f"query must have one entry per image, {batch}, got {len(rows)}.")
    for image, row in enumerate(rows):
        if not isinstance(row, torch.Tensor) or row.ndim != 1 or row.is_floating_point() or row.is_complex():
            got = f"{row.dtype} {list(row.shape)}" if isinstance(row, torch.Tensor) else type(row).__name__
            raise InputError(f"query[{image}] must be an integer tensor [n], got {got}.")
        if row.numel() and not 0 <= int(row.min()) <= int(row.max()) < queries:
            raise InputError(
                f"query[{image}] must hold indices in 0..{queries - 1}, got {int(row.min())}..{int(row.max())}."
            )
    return [row.long() for row in rows]


def check_image_sizes(image_sizes: ImageSizes, batch: int) -> list[tuple[int, int]]:
    """Check the `image_sizes` argument of an op.

    Raises:
        InputError: Not one (height, width) of positive integers per image.
    """
    sizes = list(image_sizes)
    if len(sizes) != batch:
        raise InputError(f"image_sizes must have one (height, width) per image, {batch}, got {len(sizes)}.")
    for image, size in enumerate(sizes):
        if len(size) != 2 or any(not isinstance(side, int) or side < 1 for side in size):
            raise InputError(f"image_sizes[{image}] must be (height, width) of at least 1 pixel, got {size!r}.")
    return [(height, width) for height, width in sizes]
