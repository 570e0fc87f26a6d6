"""Types passed from `select` to the mask ops: selected detections, mask indices and image sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch.nn.utils.rnn import pad_sequence

from maskjet.errors import InputError, translate_errors
from maskjet.masks.coco_rle import MOST_PIXELS
from maskjet.ops.canvas import Canvas
from maskjet.ops.gpu import table
from maskjet.ops.record import describe

ImageSizes = Sequence[tuple[int, int]]
"""(height, width) in pixels, one per image of the batch."""

_MOST_SIDE = 2**31 - 1  # pixels; tables of sizes on a GPU are int32
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _lengths(batch: int, max_detections: int) -> tuple[int, ...]:
    """Sizes of a selection's fields in 32-bit words, in memory order."""
    rows = batch * max_detections
    return (batch, rows, rows, rows, 4 * rows)


@dataclass(frozen=True)
class SizeTable:
    """The sizes of a batch's images and their canvases, on the host and on the device."""

    hw: list[tuple[int, int]]
    """(height, width) per image, in pixels."""
    on_device: torch.Tensor
    """int32 [B, 2], rows may be strided: `hw` on the device; held because a CUDA graph may read it."""
    canvases: list[Canvas]
    """The area shown by the network's input, per image, in pixels of the image."""
    canvases_on_device: torch.Tensor
    """float32 [B, 6], rows may be strided: `Canvas.split` of each, on the device."""

    @staticmethod
    def of(hw: list[tuple[int, int]], device: torch.device, canvases: list[Canvas] | None = None) -> SizeTable:
        """Copy sizes to a device, unless cached there; without canvases, images filled the input."""
        canvases = canvases or [Canvas.of(size) for size in hw]
        sides, numbers = chain.from_iterable(hw), chain.from_iterable(canvas.split for canvas in canvases)
        on_device = table(tuple(sides), torch.int32, device).view(-1, 2)
        return SizeTable(hw, on_device, canvases, table(tuple(numbers), torch.float32, device).view(-1, 6))

    def only(self, image: int) -> SizeTable:
        """The sizes of one image."""
        return SizeTable.of(self.hw[image : image + 1], self.on_device.device, self.canvases[image : image + 1])


@dataclass(frozen=True)
class Selection:
    """The detections of a batch, most confident first; B images, K = max_detections rows each.

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

    @staticmethod
    def empty(batch: int, max_detections: int, device: torch.device) -> Selection:
        """An uninitialised selection."""
        size = Selection.length(batch, max_detections)
        return Selection.within(torch.empty(size, dtype=torch.int32, device=device), batch, max_detections)

    @staticmethod
    def length(batch: int, max_detections: int) -> int:
        """Size of all fields together, in 32-bit words."""
        return sum(_lengths(batch, max_detections))

    @staticmethod
    def within(memory: torch.Tensor, batch: int, max_detections: int) -> Selection:
        """A selection whose fields are consecutive views of int32 [length] memory."""
        count, query, class_id, confidence, xyxy = memory.split_with_sizes(_lengths(batch, max_detections))
        shape = (batch, max_detections)
        return Selection(
            count=count,
            query=query.view(shape),
            class_id=class_id.view(shape),
            confidence=confidence.view(torch.float32).view(shape),
            xyxy=xyxy.view(torch.float32).view(*shape, 4),
        )

    def words(self) -> list[torch.Tensor]:
        """The fields' bits as int32 [n], in the order of `within`."""
        fields = (self.count, self.query, self.class_id, self.confidence, self.xyxy)
        return [field.flatten().view(torch.int32) for field in fields]

    @staticmethod
    def slices(batch: int, max_detections: int) -> list[slice]:
        """Slice of each field in the memory of `within`, in 32-bit words."""
        lengths = _lengths(batch, max_detections)
        return [slice(end - length, end) for end, length in zip(accumulate(lengths), lengths, strict=True)]

    def queries(self) -> list[torch.Tensor]:
        """The queries of each image, int32 [count]; waits for the device to read the counts."""
        return [row[:count] for row, count in zip(self.query, self.count.tolist(), strict=True)]


@dataclass(frozen=True)
class MaskQueries:
    """Indices of the masks to take from each image, in order; B images, K rows each."""

    count: torch.Tensor
    """int32 [B], contiguous: masks per image, 0..K."""
    query: torch.Tensor
    """int32 [B, K], contiguous: indices into the image's masks; rows at and past `count` are undefined."""
    limit: int
    """Number of masks per image; every index must be below it."""
    boxes: torch.Tensor | None = None
    """int32 [B, K, 4], contiguous: left, top, width, height of the box that each mask fills; None: the image."""

    def to(self, device: torch.device) -> MaskQueries:
        """The queries on another device."""
        boxes = None if self.boxes is None else self.boxes.to(device)
        return MaskQueries(self.count.to(device), self.query.to(device), self.limit, boxes)

    def only(self, image: int, row: int) -> MaskQueries:
        """One mask of one image."""
        one = slice(row, row + 1)
        boxes = None if self.boxes is None else self.boxes[image : image + 1, one]
        return MaskQueries(torch.ones_like(self.count[:1]), self.query[image : image + 1, one], self.limit, boxes)

    def rows(self) -> list[torch.Tensor]:
        """The indices of each image as int64 [count] tensors on the host; waits for the device, once.

        Raises:
            InputError: A count or an index is out of range.
        """
        batch, most = self.query.shape
        count, query = torch.cat((self.count, self.query.flatten())).cpu().split_with_sizes((batch, batch * most))
        if batch and not 0 <= int(count.min()) <= int(count.max()) <= most:
            raise InputError(f"query must have counts in 0..{most}, got {count.tolist()}.")
        rows = [row[:n].long() for row, n in zip(query.view(batch, most), count.tolist(), strict=True)]
        _check_range(rows, self.limit)
        return rows


def mask_queries(
    query: Selection | Sequence[torch.Tensor], batch: int, limit: int, device: torch.device
) -> MaskQueries:
    """Check the `query` argument of a mask op, whose every index must be below `limit`.

    Values of a `Selection` are left unchecked so as not to wait for the device.

    Raises:
        InputError: Wrong number of images, not a vector of integers, or an index out of range.
    """
    if isinstance(query, Selection):
        if len(query.count) != batch:
            raise InputError(f"query must have one entry per image, {batch}, got {len(query.count)}.")
        if query.count.ndim != 1 or query.query.ndim != 2 or len(query.query) != batch:
            shapes = f"{list(query.count.shape)} and {list(query.query.shape)}"
            raise InputError(f"query must have counts [{batch}] and queries [{batch}, K], got {shapes}.")
        most = query.query.shape[1]
        return MaskQueries(_narrowed(query.count, most, device), _narrowed(query.query, limit, device), limit)
    with translate_errors(InputError, "query must be a Selection or one integer tensor [n] per image"):
        rows = list(query)
    if len(rows) != batch:
        raise InputError(f"query must have one entry per image, {batch}, got {len(rows)}.")
    for image, row in enumerate(rows):
        if not isinstance(row, torch.Tensor) or row.ndim != 1 or row.dtype not in _INTEGERS:
            raise InputError(f"query[{image}] must be an integer tensor [n], got {describe(row)}.")
    _check_range(rows, limit)
    padded = pad_sequence(rows, batch_first=True) if rows else torch.empty(0, 0, dtype=torch.int32, device=device)
    count = torch.tensor([len(row) for row in rows], dtype=torch.int32, device=device)
    return MaskQueries(count, padded.to(device, torch.int32), limit)


def _narrowed(values: torch.Tensor, limit: int, device: torch.device) -> torch.Tensor:
    """Convert to contiguous int32; values below 0 or above `limit` stay out of range."""
    if values.dtype != torch.int32:  # clamp before narrowing, which would wrap around
        values = values.clamp(-1, limit + 1)
    return values.to(device, torch.int32).contiguous()


def _check_range(rows: Sequence[torch.Tensor], limit: int) -> None:
    for image, row in enumerate(rows):
        if row.numel() and not 0 <= int(row.min()) <= int(row.max()) < limit:
            raise InputError(
                f"query[{image}] must hold indices in 0..{limit - 1}, got {int(row.min())}..{int(row.max())}."
            )


def check_image_sizes(image_sizes: ImageSizes, batch: int) -> list[tuple[int, int]]:
    """Check the `image_sizes` argument of an op.

    Raises:
        InputError: Not one (height, width) of positive integers per image, or more pixels than RLE can count.
    """
    with translate_errors(InputError, "image_sizes must have one (height, width) per image"):
        sizes = [tuple(size) for size in image_sizes]
    if len(sizes) != batch:
        raise InputError(f"image_sizes must have one (height, width) per image, {batch}, got {len(sizes)}.")
    for image, size in enumerate(sizes):
        if len(size) != 2 or any(not isinstance(side, int) or isinstance(side, bool) or side < 1 for side in size):
            raise InputError(f"image_sizes[{image}] must be (height, width) of at least 1 pixel, got {size!r}.")
        if max(size) > _MOST_SIDE or size[0] * size[1] > MOST_PIXELS:
            most = f"sides of at most {_MOST_SIDE:,} and {MOST_PIXELS:,} pixels"
            raise InputError(f"image_sizes[{image}] must be (height, width) with {most}, got {size!r}.")
    return [(height, width) for height, width in sizes]
