"""COCO run-length encoding on the host.

An RLE is `{"size": [H, W], "counts": bytes}`, as pycocotools reads and writes it. The counts are the lengths of runs
in column-major order, zeros first. In the string, each count from the fourth on is stored as its difference to the one
two before it, in groups of five bits. An RLE that is read may also have a `str` (as in JSON) or a list of integers
(COCO's uncompressed form) as counts. It is not trusted: functions that take one raise `InputError` if it is malformed
or has more pixels than `limits.mask_pixels`, before memory is allocated for the mask.

The first import on a machine compiles the loops; see `jit.compiled`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.checks import shown
from maskjet.errors import InputError
from maskjet.jit import Ints, compiled
from maskjet.masks.outlines import Along, trace

RLE = Mapping[str, Any]
Counts = NDArray[np.int64]

BYTES_PER_COUNT = 7
"""Most bytes of an encoded count; each holds five bits, and the topmost bit is the sign."""
MOST_PIXELS = 2 ** (5 * BYTES_PER_COUNT - 1) - 1
"""Largest mask, in pixels, whose counts and their differences fit into BYTES_PER_COUNT bytes."""
_MOST_SIDE = 2**31 - 1  # pixels; the product of two sides fits into 64 bits


@dataclass(frozen=True)
class Runs:
    """Runs of foreground pixels of n masks of one size, in column-major order."""

    size_hw: tuple[int, int]
    """Height and width of the masks in pixels."""
    spans: NDArray[np.int64]
    """int64 [r, 2]: start and exclusive end pixel of each run; runs may touch, and none is empty."""
    firsts: NDArray[np.int64]
    """int64 [n + 1]: offsets; `spans[firsts[i] : firsts[i + 1]]` are the runs of mask i, ascending."""

    def __len__(self) -> int:
        """The number of masks."""
        return len(self.firsts) - 1

    def unite(self, square: int = 1) -> NDArray[np.uint8]:
        """Union of all masks at the resolution of squares, rounded up, uint8 [H, W]: 1 if any pixel is inside."""
        height, width = self.size_hw
        region = np.zeros((-(-height // square), -(-width // square)), np.uint8)
        _fill(self.spans, height, 0, 0, square, region)
        return region


def encode(masks: NDArray[Any]) -> list[dict[str, Any]]:
    """Encode dense masks.

    Args:
        masks: bool or uint8 [n, H, W] or [H, W], any strides; nonzero is inside.

    Returns:
        One RLE per mask, byte for byte equal to pycocotools'.

    Raises:
        InputError: The masks have another dtype or shape.
    """
    array = np.asarray(masks)
    if array.ndim not in (2, 3) or array.dtype not in (np.bool_, np.uint8):
        raise InputError(f"masks must be bool or uint8 [n, H, W] or [H, W], got {array.dtype} {list(array.shape)}.")
    planes = (array if array.ndim == 3 else array[None]).view(np.uint8)
    size = [int(side) for side in planes.shape[1:]]
    return [{"size": size, "counts": counts_to_string(count_runs(plane))} for plane in planes]


def decode(rle: RLE) -> NDArray[np.bool_]:
    """Decode an RLE to a dense mask, bool [H, W]."""
    size_hw, _ = _fields(rle)
    return to_runs([rle], size_hw).unite().view(np.bool_)


def counts_to_string(counts: Sequence[int] | Counts) -> bytes:
    """Compress run lengths to COCO's string.

    Raises:
        InputError: The counts are not integers, or one is out of range.
    """
    array = _run_lengths(counts)
    buffer = np.empty(BYTES_PER_COUNT * len(array), dtype=np.uint8)
    return buffer[: write_string(array, buffer)].tobytes()


def to_json(rle: RLE) -> dict[str, Any]:
    """Convert an RLE to JSON types: the counts become a `str`, whose content is not checked."""
    (height, width), counts = _fields(rle)
    string = counts if isinstance(counts, (bytes, str)) else counts_to_string(counts)  # a union is made anew each time
    if not string.isascii():
        raise InputError(f"counts must be a COCO RLE string, got {shown(string)}.")
    return {"size": [height, width], "counts": string if isinstance(string, str) else string.decode("ascii")}


def from_json(rle: RLE) -> dict[str, Any]:
    """Convert an RLE from outside to the form `encode` returns, with the counts as `bytes`."""
    counts, (height, width) = read_counts(rle)
    string = rle["counts"]
    if not isinstance(string, bytes | str):
        string = counts_to_string(counts)
    return {"size": [height, width], "counts": string.encode("ascii") if isinstance(string, str) else string}


def area(rle: RLE) -> int:
    """The number of pixels inside a mask."""
    counts, _ = read_counts(rle)
    return int(counts[1::2].sum())


def to_xyxy(rle: RLE) -> tuple[int, int, int, int]:
    """The tight box of an RLE in pixels, right and bottom exclusive; all 0 for an empty mask."""
    size_hw, _ = _fields(rle)
    return _box(to_runs([rle], size_hw))


def decode_crop(rle: RLE) -> tuple[int, int, NDArray[np.uint8]]:
    """The left and top of a mask's tight box in pixels, and the mask in it, uint8 [h, w], 1 inside; [0, 0] if empty."""
    size_hw, _ = _fields(rle)
    runs = to_runs([rle], size_hw)
    left, top, right, bottom = _box(runs)
    crop = np.zeros((bottom - top, right - left), dtype=np.uint8)
    _fill(runs.spans, size_hw[0], left, top, 1, crop)
    return left, top, crop


def to_runs(rles: Sequence[RLE], size_hw: tuple[int, int]) -> Runs:
    """Decode the runs of RLEs of one size.

    Raises:
        InputError: An RLE is malformed, or of another size.
    """
    limits.check("mask_pixels", size_hw[0] * size_hw[1], "rle has")
    strings, as_here = [], [*size_hw]
    for rle in rles:
        # Fast path for RLEs in the form of `Detections`; all checks take ten times as long.
        given, string = (rle.get("size"), rle.get("counts")) if type(rle) is dict else (None, None)
        if type(given) is list and given == as_here and type(string) is bytes:
            strings.append(string)
            continue
        size, counts = _fields(rle)
        if size != size_hw:
            raise InputError(f"rle must have the size {list(size_hw)}, got {list(size)}.")
        strings.append(_to_bytes(counts if isinstance(counts, bytes | str) else counts_to_string(counts)))
    data = np.frombuffer(b"".join(strings), dtype=np.uint8)
    lengths = np.array([len(string) for string in strings], np.int64)
    spans, firsts = np.empty((len(data) // 2 + 1, 2), np.int64), np.zeros(len(strings) + 1, np.int64)
    found = _read_strings(data, lengths, size_hw[0] * size_hw[1], spans, firsts)
    if found < len(strings):
        area(rles[found])  # raises the error
    return Runs(size_hw, spans[: firsts[-1]], firsts)


def iou(rle: RLE, other: RLE) -> float:
    """Intersection over union of two masks, 0..1; 1 if both are empty. Masks of two sizes raise `InputError`."""
    counts, size = read_counts(rle)
    other_counts, other_size = read_counts(other)
    if size != other_size:
        raise InputError(f"other must have the size of rle, {list(size)}, got {list(other_size)}.")
    (ends, inside), (other_ends, other_inside) = _sums(counts), _sums(other_counts)
    shared = int(np.diff(np.interp(other_ends, ends, inside))[1::2].sum())  # exact: float64 holds these integers
    union = int(inside[-1] + other_inside[-1]) - shared
    return shared / union if union else 1.0


def polygons(rle: RLE, *, tolerance: float = 0.0, along: Along = "centers") -> list[NDArray[np.float32]]:
    """The outlines of an RLE's connected parts, whose holes are left out.

    One closed outline of at least three points per 8-connected part, in image coordinates; a part within a hole has its
    own. Through the centres of border pixels, outlines restore the mask with its holes filled if they are drawn one
    after the other with `cv2.fillPoly`; in a single call, OpenCV leaves out pixels that two of them cover. Those of
    straight lines and single pixels repeat points, and have no area. Along the pixels' edges, every outline has an
    area, and pycocotools restores the mask with its holes filled from them.

    Args:
        rle: The mask.
        tolerance: By about how many pixels an outline may be off, so that it has fewer points (Douglas-Peucker; what
            OpenCV joins afterwards may be off by a quarter more). Small parts' are less, so that three points stay.
        along: "centers" of border pixels, as OpenCV draws polygons; or pixels' "edges", as in COCO's data sets.

    Returns:
        float32 [k, 2] arrays of (x, y), none for an empty mask.

    Raises:
        InputError: The mask is malformed, or an argument is not as above.
    """
    left, top, crop = decode_crop(rle)
    return [line + np.array((left, top), np.float32) for line in trace(crop, tolerance, along)]


def read_counts(rle: RLE) -> tuple[Counts, tuple[int, int]]:
    """Read and check run lengths and (height, width): lengths are at least 0 and sum to height × width."""
    (height, width), counts = _fields(rle)
    pixels = height * width
    limits.check("mask_pixels", pixels, "rle has")
    if isinstance(counts, bytes | str):
        runs, total = _expand(counts, pixels)
    else:
        runs = _run_lengths(counts)
        total = int(runs.sum())  # no overflow: memory holds fewer than 2**31 lengths, each below 2**32
    if total != pixels:
        got = "more" if total > pixels else total
        raise InputError(f"counts must sum to {height} × {width} = {pixels}, got {got}.")
    return runs, (height, width)


def _sums(counts: Counts) -> tuple[Counts, Counts]:
    """Cumulative pixel counts at each run start and at the end: all pixels, and those inside."""
    inside = counts * (np.arange(len(counts)) % 2)
    return np.append(0, counts).cumsum(), np.append(0, inside).cumsum()


def _box(runs: Runs) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a mask's pixels, right and bottom exclusive; zeros if there are none."""
    if not len(runs.spans):
        return 0, 0, 0, 0
    x, y = np.divmod(runs.spans - (0, 1), runs.size_hw[0])  # of the first and last pixel of each run
    top, bottom = int(y[:, 0].min()), int(y[:, 1].max()) + 1
    if (x[:, 0] < x[:, 1]).any():  # a run continues into the next column
        top, bottom = 0, runs.size_hw[0]
    return int(x[0, 0]), top, int(x[-1, 1]) + 1, bottom


def _fields(rle: RLE) -> tuple[tuple[int, int], Any]:
    """(height, width), checked, and the counts, unchecked."""
    try:
        height, width = rle["size"]
        counts = rle["counts"]
        are_plain = type(height) is type(width) is int  # fast path for the usual types
        sides = (height, width) if are_plain else (operator.index(height), operator.index(width))
    except Exception as error:  # untrusted input: any type, any exception
        raise InputError(f"rle must be {{'size': [H, W], 'counts': ...}}, got {shown(rle)}.") from error
    is_bool = not are_plain and (isinstance(height, bool) or isinstance(width, bool))
    if is_bool or not (0 <= sides[0] <= _MOST_SIDE and 0 <= sides[1] <= _MOST_SIDE):
        raise InputError(f"size must be [H, W] in pixels, got {shown([height, width])}.")
    return sides, counts


def _expand(string: bytes | str, most: int) -> tuple[Counts, int]:
    """Decode the run lengths of a string and their sum; stops once the sum exceeds `most`."""
    data = np.frombuffer(_to_bytes(string), dtype=np.uint8)
    counts = np.empty(len(data), dtype=np.int64)
    found, total = _read_string(data, counts, most)
    if found < 0:
        raise InputError(f"counts must be a whole COCO RLE string, got {shown(string)}.")
    return counts[:found], total


def _to_bytes(string: bytes | str) -> bytes:
    """Encode an RLE string; non-ASCII characters become bytes that are invalid in it."""
    return string.encode("utf-8", "surrogatepass") if isinstance(string, str) else string


def _run_lengths(counts: Sequence[int] | Counts) -> Counts:
    try:
        array = np.asarray(counts)
    except Exception:  # ragged lists, and anything else NumPy refuses
        array = np.empty((0, 0))
    is_integer = np.issubdtype(array.dtype, np.integer) or array.size == 0
    if array.ndim != 1 or not is_integer or (array.size and (array.min() < 0 or array.max() >= 2**32)):
        raise InputError(f"counts must be run lengths in 0..2**32-1, got {shown(counts)}.")
    return np.ascontiguousarray(array, dtype=np.int64)


@compiled("int64(Array(int64, 1, 'C', True), uint8[::1])")
def write_string(counts: Counts, out: NDArray[np.uint8]) -> int:
    """Write COCO's string of `counts` into `out`, which must hold 7 bytes per count; returns how many were written."""
    written = 0
    for i in range(len(counts)):
        value = counts[i] - counts[i - 2] if i > 2 else counts[i]
        while True:
            bits = value & 0x1F
            value >>= 5
            is_last = value == (-1 if bits & 0x10 else 0)  # only the sign is left
            out[written] = 48 + bits + (0 if is_last else 0x20)
            written += 1
            if is_last:
                break
    return written


@compiled("UniTuple(int64, 2)(Array(uint8, 1, 'C', True), int64[::1], int64)")
def _read_string(data: NDArray[np.uint8], counts: Counts, most: int) -> tuple[int, int]:
    """Decode run lengths into `counts`, one slot per byte, until their sum exceeds `most`, up to 2**62.

    Returns:
        Number of counts and their sum; (-1, 0) if the string is malformed.
    """
    found, position, total = 0, 0, np.int64(0)
    while position < len(data) and total <= most:
        value, shift = np.int64(0), 0
        while True:
            if position == len(data) or not 48 <= data[position] < 112 or shift > 30:
                return -1, 0
            group = np.int64(data[position]) - 48
            position += 1
            value |= (group & 0x1F) << shift
            shift += 5
            if not group & 0x20:
                break
        if group & 0x10:
            value -= np.int64(1) << shift
        if found > 2:
            value += counts[found - 2]
        if value < 0:
            return -1, 0
        counts[found] = value
        total += value  # no overflow: the count and the sum before it are at most 2**62
        found += 1
    return found, int(total)


@compiled("int64(Array(uint8, 1, 'C', True), int64[::1], int64, int64[:, ::1], int64[::1])")
def _read_strings(data: NDArray[np.uint8], lengths: Ints, pixels: int, spans: Ints, firsts: Ints) -> int:
    """Decode RLE strings into `spans` and `firsts`, see `Runs`; returns the number before the first malformed one."""
    begin, filled = 0, 0
    counts = np.empty(lengths.max() if len(lengths) else 0, np.int64)
    for mask in range(len(lengths)):
        found, total = _read_string(data[begin : begin + lengths[mask]], counts, pixels)
        if found < 0 or total != pixels:
            return mask
        end = np.int64(0)
        for i in range(found):
            start, end = end, end + counts[i]
            if i % 2 and end > start:
                spans[filled, 0], spans[filled, 1] = start, end
                filled += 1
        begin += lengths[mask]
        firsts[mask + 1] = filled
    return len(lengths)


@compiled("int64[::1](Array(uint8, 2, 'A', True))")
def count_runs(mask: NDArray[np.uint8]) -> Counts:
    """Run lengths of a dense mask [H, W], column by column."""
    height, width = mask.shape
    counts = np.empty(height * width + 1, dtype=np.int64)
    found, run, value = 0, 0, False
    for x in range(width):
        for y in range(height):
            if (mask[y, x] != 0) != value:
                counts[found] = run
                found, run, value = found + 1, 0, not value
            run += 1
    counts[found] = run
    return counts[: found + 1].copy()


@compiled("void(Array(int64, 2, 'C', True), int64, int64, int64, int64, uint8[:, ::1])")
def _fill(spans: Ints, height: int, left: int, top: int, square: int, out: NDArray[np.uint8]) -> None:
    """Set the squares touched by runs to 1 in `out`, a crop of the mask that begins at (left, top)."""
    for number in range(len(spans)):
        start, end = spans[number]
        while start < end:  # one column at a time
            x = start // height
            below = min(end, (x + 1) * height)
            column = (x - left) // square
            for y in range((start - x * height - top) // square, (below - 1 - x * height - top) // square + 1):
                out[y, column] = 1
            start = below
