"""JPEGs that an NVIDIA GPU's own decoder may have: plain ones that are proven whole.

The hardware decodes a scan that ends early without an error, and shows in its missing part the pixels of images that it
decoded before. So the codes of the whole scan are read here first, as a decoder reads them, but nothing is transformed:
each code is valid, no run leaves its block, all blocks are there, restart markers are in their places, and the end
marker follows. What is found otherwise, or is no plain baseline JPEG, is left to the decoder on the CPU.

Header and scan are read in one compiled call outside the interpreter's lock; 1 ms for 250 kB.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskjet.jit import compiled
from maskjet.media.pillow_images import stated_orientation

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Entries = NDArray[np.int32]


class PlainJPEG(NamedTuple):
    """A JPEG that was found whole, and that GPUs decode as libjpeg-turbo does."""

    data: bytes
    """The file up to its end marker."""
    size_hw: tuple[int, int]
    """(height, width) in pixels as stored, before turning."""
    orientation: int
    """How it is turned to be upright, as in EXIF; others than 2 to 8 are upright."""


(
    _NO_JPEG,
    _DAMAGED,
    _RESTARTS,
    _PROGRESSIVE,
    _OTHER_CODING,
    _CMYK,
    _COLOURS,
    _SAMPLING,
    _SMALL,
    _LARGE,
    _SCANS,
    _TABLES,
) = range(-1, -13, -1)
_REASONS = {
    _NO_JPEG: "no JPEG",
    _DAMAGED: "cut off or damaged",
    _RESTARTS: "restart markers out of place",
    _PROGRESSIVE: "progressive",
    _OTHER_CODING: "neither baseline nor progressive",
    _CMYK: "CMYK",
    _COLOURS: "not surely YCbCr",
    _SAMPLING: "sampled otherwise than 4:4:4, 4:2:2, 4:2:0 or 4:4:0",
    _SMALL: "under 16 pixels",
    _LARGE: "over 16,384 pixels",
    _SCANS: "several scans",
    _TABLES: "unusual tables or segments",
}

# Facts of a header, by their place in an array.
_HEIGHT, _WIDTH, _COMPONENTS, _ACROSS, _DOWN, _INTERVAL, _HAS_APP1, _HAS_JFIF, _HAS_OTHER_COLOURS, _DEFINED = range(10)
_IDS, _QUANTISERS, _DC_TABLES, _AC_TABLES, _FACTS = 10, 13, 16, 19, 22  # one for each component; length of the array
_LEAST_SIDE, _MOST_SIDE = 16, 16384  # narrower than 4 the hardware is wrong; its largest size

_LOOKED_UP = 12  # bits of the scan that tables are asked for
_TABLES_HELD = 4  # of codes: two of DC, two of AC
_BLOCK = 64
_MOST_DC, _MOST_AC = 11, 10  # bits of a coefficient
_MOST_SEGMENTS = 4096  # before the scan
_ALL, _HALF = np.uint64(2**64 - 1), np.uint64(32)
_LOWEST, _HIGHEST = np.uint64(0x01010101), np.uint64(0x80808080)  # bits of four bytes


def check_jpeg(data: bytes) -> PlainJPEG | str:
    """Find out whether a GPU may decode an image file; takes time in proportion to its bytes, whatever size it states.

    Args:
        data: The whole file, of any kind.

    Returns:
        The JPEG, or in few words why the CPU must decode the file.
    """
    facts = np.zeros(_FACTS, dtype=np.int64)
    end = _find_end(np.frombuffer(data, dtype=np.uint8), facts)
    if end < 0:
        return _REASONS[end]
    orientation = stated_orientation(data) if facts[_HAS_APP1] else 1
    return PlainJPEG(data[:end], (int(facts[_HEIGHT]), int(facts[_WIDTH])), orientation)


@compiled("int32(int64, int64, boolean)")
def _entry(symbol: int, length: int, is_dc: bool) -> int:
    """What a code does, in one number; 0 if it is invalid.

    Returns:
        From the lowest bits, 8 each: the bits of the code and of the coefficient behind it, the steps that it goes on
        in its block, and the steps that must be left; then the code's own bits. The end of a block goes on by all.
    """
    size, run = symbol & 15, symbol >> 4
    if is_dc:
        valid, step, needed, size = symbol <= _MOST_DC, 1, 1, symbol
    elif size:
        valid, step, needed = size <= _MOST_AC, run + 1, run + 1
    elif run:  # 16 zeros, and one more coefficient
        valid, step, needed = run == 15, 16, 17
    else:
        valid, step, needed = True, _BLOCK, 1
    return (length + size) | step << 8 | needed << 16 | length << 24 if valid else 0


@compiled("int32(uint64, Array(uint8, 1, 'C', True), int64, boolean)")
def _search(bits: int, table: Bytes, position: int, is_dc: bool) -> int:
    """Find the code that begins a word of 64 bits; as `_entry`. The table begins at a position of the file."""
    code, first, symbols = 0, 0, position + 16
    for length in range(1, 17):
        count = np.int64(table[position + length - 1])
        code = np.int64(bits >> np.uint64(64 - length))
        if code < first + count:
            return _entry(np.int64(table[symbols + code - first]), length, is_dc)
        first = (first + count) << 1
        symbols += count
    return 0


@compiled("boolean(Array(uint8, 1, 'C', True), int64, boolean, int32[::1], int32[::1])")
def _fill_tables(data: Bytes, position: int, is_dc: bool, singles: Entries, several: Entries) -> bool:
    """Fill the answers to the next _LOOKED_UP bits, for the first code and for all codes that end within them.

    Returns:
        Whether the table, whose counts and symbols are within the file, is valid as libjpeg has it.
    """
    first, symbol = 0, position + 16
    for length in range(1, 17):
        for _ in range(np.int64(data[position + length - 1])):
            if first + 1 >= 1 << length or (is_dc and data[symbol] > 15):  # no code is all ones
                return False
            if length <= _LOOKED_UP:
                spare = _LOOKED_UP - length
                singles[first << spare : (first + 1) << spare] = _entry(np.int64(data[symbol]), length, is_dc)
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


@compiled("int64(Array(uint8, 1, 'C', True), int64, int64, int64[::1])")
def _read_frame(data: Bytes, position: int, length: int, facts: Numbers) -> int:
    """Read a baseline frame's header; 0, or why the CPU must decode it."""
    components = np.int64(data[position + 5]) if length > 5 else 0
    if components == 0 or length != 6 + 3 * components or data[position] != 8:
        return _DAMAGED
    facts[_HEIGHT] = height = np.int64(data[position + 1]) << 8 | np.int64(data[position + 2])
    facts[_WIDTH] = width = np.int64(data[position + 3]) << 8 | np.int64(data[position + 4])
    if components not in (1, 3):
        return _CMYK if components == 4 else _COLOURS
    if min(height, width) < _LEAST_SIDE:
        return _SMALL
    if max(height, width) > _MOST_SIDE:
        return _LARGE
    facts[_COMPONENTS] = components
    for each in range(components):
        start = position + 6 + 3 * each
        facts[_IDS + each] = data[start]
        facts[_QUANTISERS + each] = data[start + 2]
        across, down = np.int64(data[start + 1]) >> 4, np.int64(data[start + 1]) & 15
        most = 2 if each == 0 and components == 3 else 1
        if not (1 <= across <= most and 1 <= down <= most):
            return _SAMPLING
        if each == 0:
            facts[_ACROSS], facts[_DOWN] = across, down
    return 0


@compiled("int64(Array(uint8, 1, 'C', True), int64, int64, int64[::1], int64[::1])")
def _read_scan(data: Bytes, position: int, length: int, facts: Numbers, tables: Numbers) -> int:
    """Read a scan's header, of which the frame's came before; 0, or why the CPU must decode it."""
    components, defined = facts[_COMPONENTS], facts[_DEFINED]
    if components == 0 or length < 1 or length != 4 + 2 * np.int64(data[position]):
        return _DAMAGED
    if data[position] != components:
        return _SCANS
    end = position + length
    if data[end - 3] != 0 or data[end - 2] != 63 or data[end - 1] != 0:
        return _DAMAGED
    for each in range(components):
        start = position + 1 + 2 * each
        dc, ac = np.int64(data[start + 1]) >> 4, np.int64(data[start + 1]) & 15
        quantiser = facts[_QUANTISERS + each]
        if data[start] != facts[_IDS + each] or dc > 1 or ac > 1 or quantiser > 3 or not defined >> quantiser & 1:
            return _TABLES
        if tables[dc] == 0 or tables[2 + ac] == 0:
            return _TABLES
        facts[_DC_TABLES + each], facts[_AC_TABLES + each] = dc, 2 + ac
    if components == 3:
        first, second, third = facts[_IDS], facts[_IDS + 1], facts[_IDS + 2]
        is_usual = first == 1 and second == 2 and third == 3
        is_other = (
            (first == 82 and second == 71 and third == 66) or first == second or second == third or first == third
        )
        if is_other or facts[_HAS_OTHER_COLOURS] or not (is_usual or facts[_HAS_JFIF]):
            return _COLOURS
    return 0


@compiled("boolean(Array(uint8, 1, 'C', True), int64, int64, boolean, int64[::1], int64[::1])")
def _read_tables(data: Bytes, position: int, length: int, is_codes: bool, facts: Numbers, tables: Numbers) -> bool:
    """Note the tables of a segment, of codes or of quantisers; whether they are usual, and none came before."""
    end = position + length
    while position < end:
        kind, number = np.int64(data[position]) >> 4, np.int64(data[position]) & 15
        position += 1
        size = 16 if is_codes else 64
        if end - position < size or (number > 1 or kind > 1 if is_codes else number > 3 or kind > 0):
            return False
        if is_codes:
            number += 2 * kind
            tables[number] = position
            for each in range(16):
                size += np.int64(data[position + each])
            if end - position < size or size > 16 + 256:
                return False
            number += 4
        else:
            for each in range(64):
                if data[position + each] == 0:
                    return False
        if facts[_DEFINED] >> number & 1:
            return False
        facts[_DEFINED] |= 1 << number
        position += size
    return True


@compiled("void(Array(uint8, 1, 'C', True), int64, int64, int64, int64[::1])")
def _read_application(data: Bytes, marker: int, position: int, length: int, facts: Numbers) -> None:
    """Note what an application's segment tells of colours, and whether it may tell an orientation."""
    if marker == 0xE0 and length >= 14:
        is_jfif = True
        for each, letter in enumerate(b"JFIF\0"):
            is_jfif &= data[position + each] == letter
        facts[_HAS_JFIF] |= is_jfif
    elif marker == 0xE1:  # Exif or XMP
        facts[_HAS_APP1] = 1
    elif marker == 0xEE and length >= 5:
        is_adobe = True
        for each, letter in enumerate(b"Adobe"):
            is_adobe &= data[position + each] == letter
        facts[_HAS_OTHER_COLOURS] |= is_adobe and (length < 12 or data[position + 11] != 1)


@compiled("int64(Array(uint8, 1, 'C', True), int64[::1], int64[::1])")
def _read_header(data: Bytes, facts: Numbers, tables: Numbers) -> int:
    """Read all segments before the scan; the position of its data, or why the CPU must decode it."""
    if len(data) < 2 or data[0] != 0xFF or data[1] != 0xD8:
        return _NO_JPEG
    position = 2
    for _ in range(_MOST_SEGMENTS):
        if len(data) - position < 4 or data[position] != 0xFF:
            return _DAMAGED
        marker, start = np.int64(data[position + 1]), position + 4
        length = (np.int64(data[position + 2]) << 8 | np.int64(data[position + 3])) - 2
        position = start + length
        if length < 0 or position > len(data):
            return _DAMAGED
        why = 0
        if marker == 0xC2:
            return _PROGRESSIVE
        if marker == 0xC0:
            why = _read_frame(data, start, length, facts) if facts[_COMPONENTS] == 0 else _TABLES
        elif marker == 0xC4 or marker == 0xDB:
            why = 0 if _read_tables(data, start, length, marker == 0xC4, facts, tables) else _TABLES
        elif marker == 0xDD:
            why = 0 if length == 2 and not facts[_DEFINED] >> 8 else _TABLES
            if why == 0:
                facts[_DEFINED] |= 1 << 8
                facts[_INTERVAL] = np.int64(data[start]) << 8 | np.int64(data[start + 1])
        elif 0xE0 <= marker <= 0xEF:
            _read_application(data, marker, start, length, facts)
        elif marker == 0xDA:
            why = _read_scan(data, start, length, facts, tables)
            return why if why else position
        elif marker != 0xFE:
            return _OTHER_CODING if 0xC0 <= marker <= 0xCF else _TABLES
        if why:
            return why
    return _TABLES


@compiled("boolean(Array(uint8, 1, 'C', True), uint64, int64)")
def _has_marker(data: Bytes, at: int, marker: int) -> bool:
    """Whether a marker is at a position; for 0xD0, any restart marker."""
    if at + np.uint64(1) >= np.uint64(len(data)) or data[at] != 0xFF:
        return False
    found = data[at + np.uint64(1)]
    return found & 0xF8 == 0xD0 if marker == 0xD0 else found == marker


@compiled("int64(Array(uint8, 1, 'C', True), int64, int64[::1], int64[::1], int32[::1], int32[::1])")
def _read_codes(data: Bytes, start: int, facts: Numbers, tables: Numbers, singles: Entries, several: Entries) -> int:
    """Read the codes of a scan; the position behind the end marker that follows, or why the CPU must decode it."""
    across, down, interval = facts[_ACROSS], facts[_DOWN], facts[_INTERVAL]
    units = -(-facts[_WIDTH] // (8 * across)) * -(-facts[_HEIGHT] // (8 * down))  # in each, blocks of all components
    blocks = across * down + facts[_COMPONENTS] - 1
    at, size = np.uint64(start), np.uint64(len(data))
    bits, held = np.uint64(0), 0  # the next bits of the scan, from the highest one, and their number
    left, restarts = interval, 0
    for unit in range(units):
        for block in range(blocks):
            component = max(block - across * down + 1, 0)
            table, step = facts[_DC_TABLES + component], 0
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
                            break  # a marker; or the end of the file
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
                    return _DAMAGED
                bits <<= np.uint64(entry & 255)
                held -= entry & 255
                step += entry >> 8 & 255
                table = facts[_AC_TABLES + component]
            if held < 0:
                return _RESTARTS if _has_marker(data, at, 0xD0) else _DAMAGED
        left -= 1
        if left == 0 or unit == units - 1:
            is_filled = held < 8 and bits | _ALL >> np.uint64(held) == _ALL  # by ones, up to a whole byte
            if unit == units - 1:
                break
            if not is_filled or not _has_marker(data, at, 0xD0) or data[at + np.uint64(1)] != 0xD0 + restarts:
                return _RESTARTS
            at += np.uint64(2)
            bits, held = np.uint64(0), 0
            left, restarts = interval, (restarts + 1) & 7
    if is_filled and _has_marker(data, at, 0xD9):
        return np.int64(at) + 2
    return _RESTARTS if _has_marker(data, at, 0xD0) else _DAMAGED


@compiled("int64(Array(uint8, 1, 'C', True), int64[::1])")
def _find_end(data: Bytes, facts: Numbers) -> int:
    """Read a whole file, and note its facts; the position behind its end marker, or why the CPU must decode it."""
    tables = np.zeros(_TABLES_HELD, np.int64)
    start = _read_header(data, facts, tables)
    if start < 0:
        return start
    singles = np.zeros(_TABLES_HELD << _LOOKED_UP, np.int32)
    several = np.zeros(_TABLES_HELD << _LOOKED_UP, np.int32)
    for table in range(_TABLES_HELD):
        first, last = table << _LOOKED_UP, (table + 1) << _LOOKED_UP
        if tables[table] and not _fill_tables(data, tables[table], table < 2, singles[first:last], several[first:last]):
            return _TABLES
    return _read_codes(data, start, facts, tables, singles, several)
