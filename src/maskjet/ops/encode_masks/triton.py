"""encode_masks on an NVIDIA GPU: from mask logits to finished COCO strings in two launches, without a full-size mask.

Bilinear upsampling is separable: along a column of the image the value is linear in each stretch between two
neighbouring rows of logits, so it changes sides (inside or outside) at most once there. Work per column grows with the
rows of logits, say 78, not with the image's.

1. `find_edges_kernel`, some programs per image that share its masks' blocks of columns, whatever its size, finds the
   edges: pixels, in column-major order, on another side than the pixel before. A stretch has an edge at its first pixel
   if that differs from the last pixel of the previous stretch or column, and an edge within if its first and last pixel
   differ. Both are decided by evaluating those pixels, so neighbouring stretches always agree. A block's edges lie in
   order in a segment of its own, taken from a pool.
2. `write_strings_kernel`, one program per mask, puts the segments in order, converts edges to run lengths and those to
   COCO's string, and appends it to the strings written so far. The place of a segment or string depends on the order
   in which programs run; its content does not.

A mask may cover a canvas around the image, or fill a box. Positions are counted from there. Beyond a box they stay at
the mask's border, where nothing is inside, so that the whole image is treated alike.

A mask that appears several times at the image's size is encoded once. The pools are bounded: masks that do not fit are
counted, left out, and encoded again with as much room as they need when the strings are read.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from maskjet.masks.coco_rle import BYTES_PER_COUNT
from maskjet.ops.encode_masks import cpu
from maskjet.ops.encode_masks.kernels import COUNTERS, FIELDS, NO_MASK, find_edges_kernel, write_strings_kernel
from maskjet.ops.gpu import Launcher, on_device
from maskjet.ops.memory import Scratch
from maskjet.ops.record import FALLBACKS
from maskjet.ops.selection import MaskQueries, SizeTable

_COLUMNS = 16  # image columns per block
# Programs of find_edges; each takes several column blocks: 33 masks have 1,320 at 640 × 480, 3,960 at 1080p.
_PROGRAMS, _LEAST_PROGRAMS = 4096, 1024  # limit over all images, and least per image
_IMAGES = 64  # images per step when blocks are counted
_ROWS, _ROWS_OF_MANY = 16, 8  # rows of logits per step
_MANY = 4  # batch size from which throughput counts more than the slowest block
_BLOCKS = 64  # column blocks per step
_TILE = 1024  # run lengths per step
_EDGES = 8192  # room per mask on average; at 1080p a ragged blob 560 pixels wide has 1,500, noise 74,000
_MOST_EDGES = 2**24  # 64 MiB, twice: 16 slots take 2 GiB at most
_BYTES = 4096  # room per string on average; the string of that blob takes 2,300
_LEAST_ROOM = 16  # fewest masks that buffers are sized for
_BYTES_AT_ONCE = 2**18  # bytes of strings per image in the first copy to the host; 5 µs at 50 GB/s
_MOST_PIXELS = 2**28  # per image: a string of seven bytes per pixel can be counted in 32 bits
_MOST_PROGRAMS = 65535  # CUDA's limit along the second and third axis of a grid
_COUNTERS, _FIELDS, _NO_MASK = (int(constant.value) for constant in (COUNTERS, FIELDS, NO_MASK))
_find_edges, _find_edges_of_many = (Launcher(find_edges_kernel, num_warps=warps) for warps in (4, 2))
_write_strings = Launcher(write_strings_kernel, num_warps=16)

Cut = Callable[[], list[bytes]]
"""Returns an image's COCO strings; may be called repeatedly, from any thread."""


@dataclass
class Buffers:
    """Device memory that one call of `launch` writes, for B images of up to K masks each."""

    edges: torch.Tensor
    """int32 [edges]: positions, column-major, at which a mask changes sides; grouped in segments."""
    segments: torch.Tensor
    """int32 [blocks, 2]: offset in `edges`, -1 if it did not fit, and length of each column block's segment; by image,
    mask and block, so that the images' sizes say where each lies."""
    ordered: torch.Tensor
    """int32 [edges]: the edges of each mask in order, one mask after the other."""
    packed: torch.Tensor
    """uint8: the header, then the strings."""
    shape: tuple[int, int]
    """B and K."""

    header: torch.Tensor = field(init=False)
    """int32 [3 + B + 4 B K] of `packed`: counters, masks per image, then offset, length, edges and slot per mask."""
    strings: torch.Tensor = field(init=False)
    """uint8, part of `packed`: the strings, one after the other."""
    head: torch.Tensor = field(init=False)
    """uint8, part of `packed`: the header and the strings that the first copy to the host takes."""

    def __post_init__(self) -> None:
        batch, masks = self.shape
        size = 4 * _header_length(batch, masks)
        self.header, self.strings = self.packed[:size].view(torch.int32), self.packed[size:]
        self.head = self.packed[: size + batch * _BYTES_AT_ONCE]
        self.header.zero_()  # an unwritten row must not look like a mask that did not fit

    @staticmethod
    def size_of_packed(batch: int, masks: int) -> int:
        """Default size of `packed`, in bytes, for a batch of images with at most `masks` masks each."""
        return 4 * _header_length(batch, masks) + max(batch * masks, _LEAST_ROOM) * _BYTES

    @staticmethod
    def allocate(
        batch: int,
        masks: int,
        blocks: int,
        device: torch.device,
        *,
        edges: int | None = None,
        packed: torch.Tensor | None = None,
        scratch: Scratch | None = None,
    ) -> Buffers:
        """Allocate buffers for `batch` images with at most `masks` masks each and `blocks` column blocks in all.

        `edges` is the room for edges of all masks together; `packed` is uint8, contiguous and 4-byte aligned. Without
        them both have default sizes. `scratch` holds what is of no use after the launches.
        """
        if packed is None:
            packed = torch.empty(Buffers.size_of_packed(batch, masks), dtype=torch.uint8, device=device)
        edges = edges or min(max(batch * masks, _LEAST_ROOM) * _EDGES, _MOST_EDGES)
        scratch = scratch or Scratch(device)
        return Buffers(
            edges=scratch.take("edges", edges, torch.int32),
            segments=scratch.take("segments", 2 * blocks * masks, torch.int32).view(-1, 2),
            ordered=scratch.take("ordered", edges, torch.int32),
            packed=packed,
            shape=(batch, masks),
        )


def encode_masks(
    mask_logits: torch.Tensor, queries: MaskQueries, sizes: SizeTable, out: DeviceStrings | None = None
) -> list[list[bytes]] | None:
    """Encode masks of [B, Q, h, w]; see `ops.encode_masks`.

    With `out` given, it never waits and returns None, unless the masks are too large for it.
    """
    batch, masks = queries.query.shape
    if not batch or not masks:
        return [[] for _ in sizes.hw]
    if out is not None:
        out.given = mask_logits, queries, sizes
    if (reason := _why_too_large(mask_logits, masks, sizes.hw)) is not None:
        (FALLBACKS if out is None else out.fallbacks)[f"encode_masks: {reason}"] += batch
        return cpu.encode_masks(mask_logits.cpu(), queries.to(torch.device("cpu")), sizes)
    if out is not None:
        launch(mask_logits, queries, sizes, out.buffers)
        return None
    blocks = triton.next_power_of_2(count_blocks(sizes.hw))  # a power of two: few buffer sizes serve all images
    buffers, host = _own_buffers(threading.get_ident(), batch, masks, blocks, mask_logits.device)
    launch(mask_logits, queries, sizes, buffers)
    host.copy_(buffers.head, non_blocking=True)
    if mask_logits.is_cuda:
        torch.cuda.current_stream(mask_logits.device).synchronize()
    strings = DeviceStrings(buffers, given=(mask_logits, queries, sizes))
    return [cut() for cut in strings.read(strings.keep(host.numpy()), batch)]


def _why_too_large(mask_logits: torch.Tensor, slots: int, image_sizes: Sequence[tuple[int, int]]) -> str | None:
    """Why the images exceed 32-bit counters or CUDA's grid limits; None if they fit."""
    batch, _, rows, columns = mask_logits.shape
    if max(height * width for height, width in image_sizes) > _MOST_PIXELS:
        return f"images of more than {_MOST_PIXELS:,} pixels"
    if max(batch, slots) > _MOST_PROGRAMS:
        return f"more than {_MOST_PROGRAMS:,} masks of an image, or images"
    _, _, down, across = mask_logits.stride()
    if (rows - 1) * down + (columns - 1) * across >= 2**31:
        return "masks whose logits lie too far apart"
    # From 2**31 edges on their counter is negative, which `_fits` sees; at 2**32 it would start over.
    if slots * sum(width for _, width in image_sizes) * 2 * rows >= 2**32:
        return "so many masks that their edges can't be counted"
    return None


@lru_cache(maxsize=8)
def _own_buffers(
    _thread: int, batch: int, masks: int, blocks: int, device: torch.device
) -> tuple[Buffers, torch.Tensor]:
    """This thread's reusable buffers and host memory for their head; each call waits until they are free."""
    with torch.inference_mode(False):  # inference tensors can't be written to outside inference mode
        buffers = Buffers.allocate(batch, masks, blocks, device)
        return buffers, torch.empty_like(buffers.head, device="cpu", pin_memory=buffers.head.is_cuda)


def launch(mask_logits: torch.Tensor, queries: MaskQueries, sizes: SizeTable, buffers: Buffers) -> None:
    """Encode into given buffers: two launches, no allocation; never waits, and can be captured in a CUDA graph.

    Counts and indices of queries are read on the device. Images have at most 2**28 pixels each. The buffers are for
    this batch, K masks and at least as many blocks, and are overwritten.
    """
    batch, masks = buffers.shape
    slots, has_boxes, is_many = triton.next_power_of_2(masks), queries.boxes is not None, batch >= _MANY
    with on_device(mask_logits.device):
        (_find_edges_of_many if is_many else _find_edges)(
            (min(max(_PROGRAMS // batch, _LEAST_PROGRAMS), max(len(buffers.segments), 1)), batch, 1),
            (mask_logits.device, mask_logits.dtype),
            mask_logits,
            queries.count,
            queries.query,
            sizes.on_device,
            sizes.canvases_on_device,
            sizes.on_device if queries.boxes is None else queries.boxes,
            buffers.edges,
            buffers.segments,
            buffers.header,
            *mask_logits.shape[1:],
            masks,
            len(buffers.edges),
            sizes.on_device.stride(0),
            sizes.canvases_on_device.stride(0),
            *mask_logits.stride(),
            ROWS=_ROWS_OF_MANY if is_many else _ROWS,
            COLUMNS=_COLUMNS,
            SLOTS=slots,
            IMAGES=_IMAGES,
            HAS_BOXES=has_boxes,
        )
        _write_strings(
            (masks, batch, 1),
            mask_logits.device,
            queries.count,
            queries.query,
            sizes.on_device,
            buffers.edges,
            buffers.segments,
            buffers.ordered,
            buffers.header,
            buffers.strings,
            queries.limit,
            masks,
            len(buffers.ordered),
            len(buffers.strings),
            sizes.on_device.stride(0),
            COLUMNS=_COLUMNS,
            SLOTS=slots,
            IMAGES=_IMAGES,
            HAS_BOXES=has_boxes,
            BLOCKS=_BLOCKS,
            TILE=_TILE,
        )


def count_blocks(sizes_hw: Sequence[tuple[int, int]]) -> int:
    """Total number of column blocks of images; see `Buffers.allocate`."""
    return sum(-(-width // _COLUMNS) for _, width in sizes_hw)


def _header_length(batch: int, masks: int) -> int:
    return _COUNTERS + batch + _FIELDS * batch * masks


def allocate(
    batch: int,
    masks: int,
    width: int,
    device: torch.device,
    *,
    lead: int = 0,
    fallbacks: Counter[str] = FALLBACKS,
    scratch: Scratch | None = None,
) -> DeviceStrings:
    """Allocate output buffers of `encode_masks` for images that are `width` pixels wide on average.

    The `lead` bytes at the start of their memory, a multiple of 4, are the caller's. Others may use the scratch memory
    between batches; None for memory of its own.
    """
    memory = torch.empty(lead + Buffers.size_of_packed(batch, masks), dtype=torch.uint8, device=device)
    blocks = batch * triton.cdiv(width, _COLUMNS)
    buffers = Buffers.allocate(batch, masks, blocks, device, packed=memory[lead:], scratch=scratch)
    return DeviceStrings(buffers, memory[: lead + len(buffers.head)], fallbacks)


class DeviceStrings:
    """Output buffers of `encode_masks` on a GPU, filled by `launch`, and the strings in a host copy of them."""

    def __init__(
        self,
        buffers: Buffers,
        memory: torch.Tensor | None = None,
        fallbacks: Counter[str] = FALLBACKS,
        given: tuple[torch.Tensor, MaskQueries, SizeTable] | None = None,
    ) -> None:
        self.buffers, self.fallbacks = buffers, fallbacks
        self.given = given
        """Arguments of the last `launch`, for masks that did not fit."""
        self.memory = buffers.head if memory is None else memory
        """uint8, ending with `buffers.head`: the caller copies it to the host and gives the copy to `keep`."""
        self._lead, self._header_bytes = len(self.memory) - len(buffers.head), buffers.header.nbytes

    def fits(self, sizes_hw: Sequence[tuple[int, int]]) -> bool:
        """Whether a captured launch can serve images of these sizes, (height, width) in pixels."""
        masks = self.buffers.shape[1]
        has_room = count_blocks(sizes_hw) * masks <= len(self.buffers.segments)
        return has_room and (self.given is None or _why_too_large(self.given[0], masks, sizes_hw) is None)

    def keep(self, copied: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Copy the used bytes of a finished host copy of `memory`, which may be overwritten on return.

        Waits for the device if that copy lacks strings.
        """
        used = copied[self._lead : self._lead + 4].view(np.uint32).item()
        end = self._lead + min(self._header_bytes + used, self.buffers.packed.nbytes)
        if end <= len(copied):
            return copied[:end].copy()
        self.fallbacks["encode_masks: strings that needed a second copy"] += 1
        rest = self.buffers.packed[len(copied) - self._lead : end - self._lead]
        return np.append(copied, rest.cpu().numpy())

    def read(self, kept: NDArray[np.uint8], images: int) -> list[Cut]:
        """Return a function per image, for the first `images`, at least 1, that makes its strings.

        `kept` is the result of `keep`, and must not change afterwards. Masks that did not fit are encoded again, which
        waits for the device.
        """
        batch, masks = self.buffers.shape
        packed = kept[self._lead :]
        words, strings = packed[: self._header_bytes].view(np.int32), packed[self._header_bytes :]
        stated = words[_COUNTERS : _COUNTERS + images].tolist()
        counts = [min(max(count, 0), masks) for count in stated]
        rows = words[_COUNTERS + batch :].reshape(batch, masks, _FIELDS)[:images, : max(counts)]
        remade: dict[tuple[int, int], bytes] = {}
        if counts != stated or rows[:, :, 1].min(initial=0) < 0:  # may also be an unused row
            failed = {  # (image, slot) to (length, edges)
                (image, slot): (length, edges)
                for image, count in enumerate(counts)
                for slot, (_, length, edges, first_slot) in enumerate(rows[image, :count].tolist())
                if first_slot == slot and length < 0
            }
            remade = self._remake(failed) if failed or counts != stated else {}
        return [partial(_cut, strings, rows, image, count, remade) for image, count in enumerate(counts)]

    @torch.inference_mode()
    def _remake(self, failed: Mapping[tuple[int, int], tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        """Re-encode masks that did not fit, one at a time, into buffers of the required size.

        Raises:
            InputError: A count or an index is out of range.
        """
        assert self.given is not None
        mask_logits, queries, sizes = self.given
        if not failed or any(length == _NO_MASK for length, _ in failed.values()):
            queries.rows()  # raises, naming the count or index out of range
        remade = {}
        for (image, slot), (_, edges) in failed.items():
            self.fallbacks["encode_masks: a mask with too many edges"] += 1
            size, device = sizes.hw[image], mask_logits.device
            room = 4 * _header_length(1, 1) + BYTES_PER_COUNT * (edges + 1)
            packed = torch.empty(room, dtype=torch.uint8, device=device)
            buffers = Buffers.allocate(1, 1, count_blocks([size]), device, edges=edges, packed=packed)
            launch(mask_logits[image : image + 1], queries.only(image, slot), sizes.only(image), buffers)
            (cut,) = DeviceStrings(buffers).read(packed.cpu().numpy(), 1)
            (remade[image, slot],) = cut()
        return remade


def _cut(
    strings: NDArray[np.uint8], rows: NDArray[np.int32], image: int, count: int, remade: Mapping[tuple[int, int], bytes]
) -> list[bytes]:
    """Slice out an image's strings; `rows`: header fields per mask, `remade`: strings that were re-encoded."""
    data, fields = strings.data, rows[image, :count].tolist()
    return [
        bytes(data[offset : offset + length]) if length >= 0 else remade[image, first_slot]
        for _, _, _, first_slot in fields
        for offset, length, _, _ in (fields[first_slot],)
    ]
