"""encode_masks on an NVIDIA GPU: from mask logits to finished COCO strings in two launches, without a full-size mask.

Bilinear upsampling is separable: along a column of the image the value is linear between two neighbouring rows of
logits, so within such a stretch the side changes at most once. Work per column goes with the rows of logits, 78, not
with the image's.

1. `find_edges_kernel`, one program per block of columns of each mask: the pixels, in column-major order, that lie on
   another side than the one before them. A stretch has an edge at its first pixel, if that differs from the last pixel
   of the stretch before (or of the column before), and one inside, if its first and last pixel differ. Each is decided
   by evaluating those pixels, so that the sides can never get out of step. A block's edges lie in order in a segment of
   its own, taken from a pool.
2. `write_strings_kernel`, one program per mask: puts the segments in order, takes differences to run lengths, these to
   COCO's string, and places it behind the strings written so far. Where a segment or string lies depends on which
   program comes first; what is in it does not.

A mask may fill a box instead of the image. Positions are then counted from the box, and beyond it they stay at the
mask's border, where nothing is inside; so all of the image is treated alike.

A mask that appears several times at the image's size is made once. The pools are bounded; what does not fit is counted
and left out, and `encode_masks` makes those masks again with as much room as they need.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from maskjet.coco_rle import BYTES_PER_COUNT
from maskjet.ops.encode_masks import cpu
from maskjet.ops.encode_masks.kernels import COUNTERS, FIELDS, NO_MASK, find_edges_kernel, write_strings_kernel
from maskjet.ops.gpu import Launcher, on_device_of, sizes_table
from maskjet.ops.record import FALLBACKS
from maskjet.ops.selection import MaskQueries

_COLUMNS = 16  # of the image, per program
_ROWS = 16  # of logits, at once
_BLOCKS = 64  # of columns, at once
_TILE = 1024  # counts at once
_EDGES = 8192  # of a mask on average; at 1080p a ragged blob 560 pixels wide has 1,500, noise 74,000
_BYTES = 4096  # of a mask's string on average; that blob's has 2,300
_LEAST_ROOM = 16  # masks of that average, if there are fewer
_BYTES_AT_ONCE = 2**18  # of an image's strings on average, copied to the host with the first copy; 5 µs at 50 GB/s
_MOST_PIXELS = 2**28  # of an image: seven bytes for each can be counted in 32 bits
_MOST_PROGRAMS = 65535  # along the second and third axis of a grid
_COUNTERS, _FIELDS, _NO_MASK = (int(constant.value) for constant in (COUNTERS, FIELDS, NO_MASK))
_find_edges = Launcher(find_edges_kernel, num_warps=4, enable_fp_fusion=True)
_write_strings = Launcher(write_strings_kernel, num_warps=16, enable_fp_fusion=True)


@dataclass
class Buffers:
    """Device memory that one call of `launch` writes: for B images of K masks each."""

    edges: torch.Tensor
    """int32 [edges]: pixels that differ from the one before them, column-major, in segments."""
    segments: torch.Tensor
    """int32 [B, K, blocks, 2]: where the segment of each block of columns lies, -1 if it did not fit; its length."""
    ordered: torch.Tensor
    """int32 [edges]: the edges of each mask, one behind the other."""
    packed: torch.Tensor
    """uint8: the header, then the strings."""

    header: torch.Tensor = field(init=False)
    """int32 [3 + B + 4 B K]: counters, the masks per image; of each mask offset, length, edges and slot; of packed."""
    strings: torch.Tensor = field(init=False)
    """uint8: the strings, one behind the other; of packed."""
    head: torch.Tensor = field(init=False)
    """uint8: the header and as many bytes of strings as are usual; of packed."""

    def __post_init__(self) -> None:
        batch, masks = self.segments.shape[:2]
        size = 4 * _header_length(batch, masks)
        self.header, self.strings = self.packed[:size].view(torch.int32), self.packed[size:]
        self.head = self.packed[: size + batch * _BYTES_AT_ONCE]
        self.packed[: 4 * _COUNTERS].zero_()

    @staticmethod
    def size_of_packed(batch: int, masks: int) -> int:
        """Bytes of `packed` that are usual for a batch of so many images and most masks of each."""
        return 4 * _header_length(batch, masks) + max(batch * masks, _LEAST_ROOM) * _BYTES

    @staticmethod
    def allocate(
        batch: int,
        masks: int,
        width: int,
        device: torch.device,
        *,
        edges: int | None = None,
        packed: torch.Tensor | None = None,
    ) -> Buffers:
        """Buffers for images up to a width.

        Args:
            batch: Images.
            masks: Most masks of an image.
            width: Of the widest image, in pixels.
            device: Where.
            edges: That fit, of all masks together; None for what is usual.
            packed: uint8, contiguous, at a multiple of 4 bytes; None to allocate what is usual.
        """
        if packed is None:
            packed = torch.empty(Buffers.size_of_packed(batch, masks), dtype=torch.uint8, device=device)
        edges = edges or max(batch * masks, _LEAST_ROOM) * _EDGES
        return Buffers(
            edges=torch.empty(edges, dtype=torch.int32, device=device),
            segments=torch.empty((batch, masks, triton.cdiv(width, _COLUMNS), 2), dtype=torch.int32, device=device),
            ordered=torch.empty(edges, dtype=torch.int32, device=device),
            packed=packed,
        )


def encode_masks(
    mask_logits: torch.Tensor, queries: MaskQueries, image_sizes: list[tuple[int, int]]
) -> list[list[bytes]]:
    """Encode masks of [B, Q, h, w]; see `ops.encode_masks`."""
    batch, masks = queries.query.shape
    if not batch or not masks:
        return [[] for _ in image_sizes]
    if (reason := _why_too_large(mask_logits, masks, image_sizes)) is not None:
        FALLBACKS[f"encode_masks: {reason}"] += batch
        return cpu.encode_masks(mask_logits.cpu(), queries.to(torch.device("cpu")), image_sizes)
    blocks = triton.cdiv(max(width for _, width in image_sizes), _COLUMNS)
    buffers, host = _own_buffers(threading.get_ident(), batch, masks, blocks * _COLUMNS, mask_logits.device)
    launch(mask_logits, queries, sizes_table(image_sizes, mask_logits.device), buffers)
    host.copy_(buffers.head, non_blocking=True)
    _wait_for(mask_logits.device)
    strings = read(host.numpy(), buffers, batch)
    if strings.has_invalid:
        queries.rows()  # names what is out of range
    return strings.by_image(encode_missing(mask_logits, queries, image_sizes, strings))


def _why_too_large(mask_logits: torch.Tensor, slots: int, image_sizes: list[tuple[int, int]]) -> str | None:
    """What 32 bits can't count, or a grid can't hold; None if all is well."""
    batch, _, rows, columns = mask_logits.shape
    if max(height * width for height, width in image_sizes) > _MOST_PIXELS:
        return f"images of more than {_MOST_PIXELS:,} pixels"
    if max(batch, slots) > _MOST_PROGRAMS:
        return f"more than {_MOST_PROGRAMS:,} masks of an image, or images"
    _, _, down, across = mask_logits.stride()
    if (rows - 1) * down + (columns - 1) * across >= 2**31:
        return "masks whose logits lie too far apart"
    # Up to 2**32 edges the counter of all of them is seen to be negative; then it begins anew.
    if batch * slots * max(width for _, width in image_sizes) * 2 * rows >= 2**32:
        return "so many masks that their edges can't be counted"
    return None


@lru_cache(maxsize=8)
def _own_buffers(
    _thread: int, batch: int, masks: int, width: int, device: torch.device
) -> tuple[Buffers, torch.Tensor]:
    """A thread's buffers, and host memory for their head: its calls wait for their strings, none finds them in use."""
    with torch.inference_mode(False):  # what is made in that mode can't be written to outside of it
        buffers = Buffers.allocate(batch, masks, width, device)
        return buffers, torch.empty_like(buffers.head, device="cpu", pin_memory=buffers.head.is_cuda)


def launch(mask_logits: torch.Tensor, queries: MaskQueries, sizes: torch.Tensor, buffers: Buffers) -> None:
    """Encode into given buffers: two launches, no allocation; never waits, and can be captured in a CUDA graph.

    Args:
        mask_logits: float32, float16 or bfloat16 [B, Q, h, w].
        queries: Which masks; the counts and indices are read on the device.
        sizes: int32 [2 B], on the device: (height, width) per image, at most 2**28 pixels each.
        buffers: Allocated for this batch, as many masks and at least this width; overwritten.
    """
    batch, masks, blocks, _ = buffers.segments.shape
    slots, has_boxes = triton.next_power_of_2(masks), queries.boxes is not None
    with on_device_of(mask_logits):
        _find_edges(
            (blocks, masks, batch),
            (mask_logits.device, mask_logits.dtype),
            mask_logits,
            queries.count,
            queries.query,
            sizes,
            sizes if queries.boxes is None else queries.boxes,
            buffers.edges,
            buffers.segments,
            buffers.header,
            *mask_logits.shape[1:],
            masks,
            len(buffers.edges),
            *mask_logits.stride(),
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            SLOTS=slots,
            HAS_BOXES=has_boxes,
        )
        _write_strings(
            (masks, batch, 1),
            mask_logits.device,
            queries.count,
            queries.query,
            sizes,
            buffers.edges,
            buffers.segments,
            buffers.ordered,
            buffers.header,
            buffers.strings,
            queries.limit,
            masks,
            blocks,
            len(buffers.ordered),
            len(buffers.strings),
            COLUMNS=_COLUMNS,
            SLOTS=slots,
            HAS_BOXES=has_boxes,
            BLOCKS=_BLOCKS,
            TILE=_TILE,
        )


def read(head: NDArray[np.uint8], buffers: Buffers, images: int) -> Strings:
    """Read what `launch` wrote; strings that were not all in the head are fetched, which waits for the device.

    Args:
        head: What was in `buffers.head`, on the host; copied.
        buffers: Not written to since.
        images: The first of the batch that are asked for.
    """
    batch, masks = buffers.segments.shape[:2]
    used = min(buffers.header.nbytes + int(head[:4].view(np.int32)[0]), len(buffers.packed))
    if used > len(head):
        FALLBACKS["encode_masks: strings that needed a second copy"] += 1
        head = np.append(head, buffers.packed[len(head) : used].cpu().numpy())
    return Strings(head, batch, masks, images)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _header_length(batch: int, masks: int) -> int:
    return _COUNTERS + batch + _FIELDS * batch * masks


class Strings:
    """What `launch` packed, on the host.

    Args:
        packed: uint8, as in `Buffers.packed`, at least up to the last string; copied.
        batch: Images the buffers were allocated for.
        masks: Masks per image they were allocated for.
        images: The first of the batch that are asked for.
    """

    def __init__(self, packed: NDArray[np.uint8], batch: int, masks: int, images: int) -> None:
        fields = _header_length(batch, masks)
        header = packed[: 4 * fields].view(np.int32)
        self._data = packed[4 * fields : 4 * fields + int(header[0])].tobytes()
        counts = header[_COUNTERS : _COUNTERS + images].tolist()
        self._count = [min(max(count, 0), masks) for count in counts]
        rows = header[_COUNTERS + batch :].reshape(batch, masks, _FIELDS)
        self._rows = rows[:images, : max(self._count)].tolist()
        failures = [
            (length, (image, slot), edges)
            for image, count in enumerate(self._count)
            for slot, (_, length, edges, made_at) in enumerate(self._rows[image][:count])
            if made_at == slot and length < 0
        ]
        self.missing = {where: edges for length, where, edges in failures if length != _NO_MASK}
        """(image, slot) of the masks that did not fit, and how many edges each has."""
        self.has_invalid = self._count != counts or any(length == _NO_MASK for length, _, _ in failures)
        """Whether a count or an index was out of range."""

    def by_image(self, remade: Mapping[tuple[int, int], bytes]) -> list[list[bytes]]:
        """The strings of each image, in the order of its queries; those that are missing from `remade`."""
        return [
            [
                self._data[offset : offset + length] if length >= 0 else remade[image, made_at]
                for _, _, _, made_at in rows[:count]
                for offset, length, _, _ in (rows[made_at],)
            ]
            for image, (count, rows) in enumerate(zip(self._count, self._rows, strict=True))
        ]


def encode_missing(
    mask_logits: torch.Tensor, queries: MaskQueries, image_sizes: list[tuple[int, int]], strings: Strings
) -> dict[tuple[int, int], bytes]:
    """Encode the masks that did not fit, one after the other, with as much room as each needs.

    Args:
        mask_logits: What `launch` was given.
        queries: What it was given.
        image_sizes: (height, width) per image.
        strings: What it wrote.
    """
    remade = {}
    for (image, slot), edges in strings.missing.items():
        FALLBACKS["encode_masks: a mask with too many edges"] += 1
        size, device = image_sizes[image], mask_logits.device
        room = 4 * _header_length(1, 1) + BYTES_PER_COUNT * (edges + 1)
        packed = torch.empty(room, dtype=torch.uint8, device=device)
        buffers = Buffers.allocate(1, 1, size[1], device, edges=edges, packed=packed)
        launch(mask_logits[image : image + 1], queries.only(image, slot), sizes_table([size], device), buffers)
        ((remade[image, slot],),) = Strings(packed.cpu().numpy(), 1, 1, 1).by_image({})
    return remade
