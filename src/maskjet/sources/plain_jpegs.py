"""Select JPEGs for the GPU's hardware decoder: baseline ones, verified to be complete.

The hardware decodes a scan that ends early without an error, and shows in its missing part the pixels of images that it
decoded before. So the codes of the whole scan are read here first, as a decoder reads them, but nothing is transformed:
each code is valid, no run leaves its block, all blocks are there, restart markers are in their places, and the end
marker follows. What is found otherwise, or is no plain baseline JPEG, is left to the decoder on the CPU.

The codes are read in one compiled call outside the interpreter's lock, 1 ms for 250 kB; the header takes 10 µs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.jit import compiled
from maskjet.sources.pillow_images import orientation_of_jpeg

Bytes = NDArray[np.uint8]
Entries = NDArray[np.int32]


class PlainJPEG(NamedTuple):
    """A verified JPEG, which GPUs decode as libjpeg-turbo does."""

    data: bytes
    """The file up to and including its end marker."""
    size_hw: tuple[int, int]
    """(height, width) in pixels as stored, before turning."""
    orientation: int
    """EXIF orientation, 1 to 8."""


_DAMAGED, _UNUSUAL = "cut off or damaged", "unusual tables or segments"
_FAULTS = {-1: _DAMAGED, -2: "restart markers out of place", -3: _UNUSUAL}
_CODINGS = dict.fromkeys(range(0xC1, 0xD0), "neither baseline nor progressive") | {0xC2: "progressive"}
_SAMPLINGS = (b"\x11", b"\x11\x11\x11", b"\x21\x11\x11", b"\x22\x11\x11", b"\x12\x11\x11")
_LEAST_SIDE, _MOST_SIDE = 16, 16384  # hardware errs below 4 pixels; upper limit of the hardware
_MOST_SEGMENTS = 1000

_LOOKED_UP = 12  # bits per table look-up; 11 or 13 are slower
_BLOCK = 64
_MOST_DC, _MOST_AC = 11, 10  # most bits of a coefficient
_ALL, _HALF = np.uint64(2**64 - 1), np.uint64(32)
_LOWEST, _HIGHEST = np.uint64(0x01010101), np.uint64(0x80808080)  # lowest and highest bit of each of four bytes


def check_jpeg(data: bytes) -> PlainJPEG | str:
    """Check whether a GPU may decode an image file; time is linear in its bytes, not its stated size.

    Returns:
        The JPEG, or in few words why the CPU must decode the file.
    """
    header = _Header()
    layout = header.read(data) or header.layout()
    if isinstance(layout, str):
        return layout
    end = _find_end(np.frombuffer(data, dtype=np.uint8), header.start, *layout)
    if end < 0:
        return _FAULTS[end]
    orientation = orientation_of_jpeg(data, header.descriptions)
    return PlainJPEG(data[:end], header.size_hw, orientation if orientation in range(2, 9) else 1)


def choose_gpu(data: bytes) -> PlainJPEG | str | None:
    """The JPEG if a GPU decodes a file, or why the CPU must; None for other formats, or above `limits.image_pixels`."""
    found = check_jpeg(data) if data.startswith(b"\xff\xd8") else None
    is_too_large = isinstance(found, PlainJPEG) and math.prod(found.size_hw) > limits.image_pixels
    return None if is_too_large else found


class _Header:
    """A JPEG's segments before its scan."""

    def __init__(self) -> None:
        self.start = 2
        """Position behind what was read; at the end, of the scan's first code."""
        self.frame = self.scan = b""
        self.size_hw = (0, 0)
        self.interval = -1
        self.quantisers: set[int] = set()
        self.codes: dict[int, int] = {}
        """Positions of the tables of codes, by their kind (0 for DC, 0x10 for AC) and number."""
        self.descriptions: list[bytes] = []
        """Segments of Exif or XMP."""
        self.is_jfif = self.has_other_colours = False

    def read(self, data: bytes) -> str | None:
        """Read all segments up to the scan, none twice; returns why the CPU must decode, if known now."""
        if not data.startswith(b"\xff\xd8"):
            return "no JPEG"
        for _ in range(_MOST_SEGMENTS):
            if len(data) < self.start + 4 or data[self.start] != 0xFF:
                return _DAMAGED
            marker, start = data[self.start + 1], self.start + 4
            self.start += 2 + (data[start - 2] << 8 | data[start - 1])
            if not start <= self.start <= len(data):
                return _DAMAGED
            body = data[start : self.start]
            if marker == 0xC0 and not self.frame and len(body) > 5:
                self.frame, self.size_hw = body, (body[1] << 8 | body[2], body[3] << 8 | body[4])
            elif marker == 0xDD and self.interval < 0 and len(body) == 2:
                self.interval = body[0] << 8 | body[1]
            elif marker == 0xDA:
                self.scan = body
                return None
            elif 0xE0 <= marker <= 0xEF:
                if marker == 0xE1:
                    self.descriptions.append(body)
                self.is_jfif |= marker == 0xE0 and body.startswith(b"JFIF\0") and len(body) >= 14
                self.has_other_colours |= marker == 0xEE and body.startswith(b"Adobe") and body[11:12] != b"\1"
            elif marker in _CODINGS and marker != 0xC4:
                return _CODINGS[marker]
            elif marker != 0xFE and not (marker in (0xC4, 0xDB) and self._read_tables(marker, start, body)):
                return _UNUSUAL
        return _UNUSUAL

    def _read_tables(self, marker: int, position: int, body: bytes) -> bool:
        """Register a segment's Huffman or quantisation tables; returns whether all are supported."""
        while body:
            kind, size = body[0], 65
            if marker == 0xC4:
                size = 17 + sum(body[1:17])
                if kind not in (0, 1, 0x10, 0x11) or kind in self.codes or size > 17 + 256:
                    return False
                self.codes[kind] = position + 1
            elif kind > 3 or kind in self.quantisers or 0 in body[1:65]:
                return False
            else:
                self.quantisers.add(kind)
            if len(body) < size:
                return False
            position += size
            body = body[size:]
        return True

    def layout(self) -> str | tuple[int, int, int, int, tuple[int, int, int, int], tuple[int, int, int]]:
        """Arguments of `_find_end` from `units` on, or the reason why the CPU must decode the image."""
        frame, scan, (height, width) = self.frame, self.scan, self.size_hw
        count = frame[5] if frame else 0
        if not count or not scan or len(frame) != 6 + 3 * count or frame[0] != 8:
            return _DAMAGED
        if min(height, width) < _LEAST_SIDE:
            return "under 16 pixels"
        if max(height, width) > _MOST_SIDE:
            return "over 16,384 pixels"
        ids, chosen = frame[6::3], scan[2:-3:2]
        is_usual = ids == b"\1\2\3" or (self.is_jfif and len(set(ids)) == 3 and ids != b"RGB")
        if count != 1 and (count != 3 or not is_usual or self.has_other_colours):
            return "CMYK" if count == 4 else "not surely YCbCr"
        if frame[7::3] not in _SAMPLINGS:
            return "sampled otherwise than 4:4:4, 4:2:2, 4:2:0 or 4:4:0"
        if scan[0] != count:
            return "several scans"
        is_whole = len(scan) == 4 + 2 * count and scan[1:-3:2] == ids and scan[-3:] == b"\0\x3f\0"
        has_codes = all(each >> 4 in self.codes and each & 15 | 0x10 in self.codes for each in chosen)
        if not (is_whole and has_codes and self.quantisers.issuperset(frame[8::3])):
            return _UNUSUAL
        across, down = frame[7] >> 4, frame[7] & 15
        units = -(-width // (8 * across)) * -(-height // (8 * down))
        dc, other_dc, ac, other_ac = (self.codes.get(kind, 0) for kind in (0, 1, 0x10, 0x11))
        luma, blue, red = chosen if count == 3 else chosen * 3
        blocks = across * down, across * down + count - 1
        return units, max(self.interval, 0), *blocks, (dc, other_dc, ac, other_ac), (luma, blue, red)


@compiled("int32(int64, int64, boolean)")
def _entry(symbol: int, length: int, is_dc: bool) -> int:
    """Table entry of a Huffman code, packed into an int32; 0 if the code is invalid.

    Returns:
        From the lowest bits, 8 each: the bits of the code and of the coefficient behind it, the steps that it goes on
        in its block, and the steps that must be left; then the code's own bits. The end of a block goes on by all.
    """
    size, run = symbol & 15, symbol >> 4
    if is_dc:
        valid, step, needed, size = symbol <= _MOST_DC, 1, 1, symbol
    elif size:
        valid, step, needed = size <= _MOST_AC, run + 1, run + 1
    elif run:  # a run of 16 zeros, which another coefficient must follow
        valid, step, needed = run == 15, 16, 17
    else:
        valid, step, needed = True, _BLOCK, 1
    return (length + size) | step << 8 | needed << 16 | length << 24 if valid else 0


@compiled("int32(uint64, Array(uint8, 1, 'C', True), int64, boolean)")
def _search(bits: np.uint64, data: Bytes, position: int, is_dc: bool) -> int:
    """Find the Huffman code at the start of 64 bits in the table at `position`; returns its `_entry`."""
    code, first, symbols = 0, 0, position + 16
    for length in range(1, 17):
        count = int(data[position + length - 1])
        code = int(bits >> np.uint64(64 - length))
        if code < first + count:
            return _entry(int(data[symbols + code - first]), length, is_dc)
        first = (first + count) << 1
        symbols += count
    return 0


@compiled("boolean(Array(uint8, 1, 'C', True), int64, boolean, int32[::1], int32[::1])")
def _fill_tables(data: Bytes, position: int, is_dc: bool, singles: Entries, several: Entries) -> bool:
    """Fill tables over _LOOKED_UP bits, for the first code and for all that end within; returns if it is valid."""
    first, symbol = 0, position + 16
    for length in range(1, 17):
        for _ in range(int(data[position + length - 1])):
            if first + 1 >= 1 << length or (is_dc and data[symbol] > 15):  # a code of all ones is invalid
                return False
            if length <= _LOOKED_UP:
                spare = _LOOKED_UP - length
                singles[first << spare : (first + 1) << spare] = _entry(int(data[symbol]), length, is_dc)
            first += 1
            symbol += 1
        first <<= 1
    for bits in range(1 << _LOOKED_UP):
        total = singles[bits]
        while total and not is_dc and (total >> 8 & 255) < _BLOCK and (total & 255) < _LOOKED_UP:
            used = total & 255
            following = singles[bits << used & ((1 << _LOOKED_UP) - 1)]
            if following == 0 or following >> 24 > _LOOKED_UP - used:
                break
            step = total >> 8 & 255
            total = (
                (used + (following & 255))
                | (step + (following >> 8 & 255)) << 8
                | (step + (following >> 16 & 255)) << 16
            )
        several[bits] = total
    return True


@compiled("boolean(Array(uint8, 1, 'C', True), uint64, int64, uint64, int64)")
def _is_at(data: Bytes, at: np.uint64, marker: int, bits: np.uint64, held: int) -> bool:
    """Whether a marker is at a position, preceded only by padding bits of ones."""
    is_filled = held < 8 and bits | _ALL >> np.uint64(held) == _ALL
    following = at + np.uint64(1)
    return bool(is_filled and following < np.uint64(len(data)) and data[at] == 0xFF and data[following] == marker)


@compiled("int64(Array(uint8, 1, 'C', True), uint64)")
def _fault(data: Bytes, at: np.uint64) -> int:
    """Error code where scan data should continue: -2 at a restart marker, else -1."""
    following = at + np.uint64(1)
    return -2 if following < np.uint64(len(data)) and data[following] & 0xF8 == 0xD0 else -1


@compiled(
    "int64(Array(uint8, 1, 'C', True), int64, int64, int64, int64, int64, UniTuple(int64, 4), UniTuple(int64, 3))"
)
def _find_end(
    data: Bytes,
    start: int,
    units: int,
    interval: int,
    luma_blocks: int,
    blocks: int,
    tables: tuple[int, int, int, int],
    chosen: tuple[int, int, int],
) -> int:
    """Decode the Huffman codes of a scan, to verify it up to its end marker.

    A unit is the smallest part that has blocks of all components, `luma_blocks` of the first; restart markers are
    `interval` units apart, 0 without them. `tables` are positions of two tables of codes for DC and two for AC, all
    within the file, 0 for none; `chosen` are those of each component. Returns the position behind the end marker that
    follows the codes; otherwise as in _FAULTS.
    """
    singles = np.zeros(len(tables) << _LOOKED_UP, np.int32)
    several = np.zeros(len(tables) << _LOOKED_UP, np.int32)
    for table in range(len(tables)):
        first, last = table << _LOOKED_UP, (table + 1) << _LOOKED_UP
        if tables[table] and not _fill_tables(data, tables[table], table < 2, singles[first:last], several[first:last]):
            return -3
    at, size = np.uint64(start), np.uint64(len(data))
    bits, held = np.uint64(0), 0  # bit buffer, filled from the highest bit, and its length
    left, restarts = interval, 0
    for unit in range(units):
        for block in range(blocks):
            component = max(block - luma_blocks + 1, 0)
            table, step = chosen[component] >> 4, 0
            while step < _BLOCK:
                if held < 32 and at + np.uint64(4) <= size:
                    word = np.uint64(0)
                    for each in range(4):
                        word = word << np.uint64(8) | np.uint64(data[at + np.uint64(each)])
                    if ((word ^ _ALL >> _HALF) - _LOWEST) & word & _HIGHEST == 0:  # none of the bytes is 0xFF
                        bits |= word << np.uint64(32 - held)
                        held += 32
                        at += np.uint64(4)
                while held < 32 and at < size:
                    byte, length = np.uint64(data[at]), np.uint64(1)
                    if byte == 0xFF:
                        if at + length >= size or data[at + length] != 0:
                            break  # a marker, or the end of the file
                        length = np.uint64(2)
                    bits |= byte << np.uint64(56 - held)
                    held += 8
                    at += length
                next_bits = np.uint64(table << _LOOKED_UP) | bits >> np.uint64(64 - _LOOKED_UP)
                entry = several[next_bits]
                if step + (entry >> 16 & 255) > _BLOCK:
                    entry = singles[next_bits]
                if entry == 0:
                    entry = _search(bits, data, tables[table], table < 2)
                if entry == 0 or step + (entry >> 16 & 255) > _BLOCK:
                    return -1
                bits <<= np.uint64(entry & 255)
                held -= entry & 255
                step += entry >> 8 & 255
                table = 2 + (chosen[component] & 1)
            if held < 0:
                return _fault(data, at)
        left -= 1
        if left == 0 and unit < units - 1:
            if not _is_at(data, at, 0xD0 + restarts, bits, held):
                return -2
            at += np.uint64(2)
            bits, held = np.uint64(0), 0
            left, restarts = interval, (restarts + 1) & 7
    if _is_at(data, at, 0xD9, bits, held):
        return int(at) + 2
    return _fault(data, at)
