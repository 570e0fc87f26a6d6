"""Whether a key frame's packet is an intra picture, or only marks where a gradual refresh begins; not decoded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import av

_H264_SLICE, _H264_IDR = 1, 5
_H264_INTRA = (2, 4)  # slice types I and SI, modulo 5
_HEVC_PICTURES = range(32)
_HEVC_RANDOM_ACCESS = range(16, 24)
_LENGTH_AT = {"h264": 4, "hevc": 21}  # byte of the configuration record with the size of a unit's length
_MOST_UNITS = 64  # before the first slice: parameter sets and messages
_LONGEST_CODE = 16  # bits of an Exp-Golomb code before its 1; FFmpeg reads no longer ones


def is_intra(packet: av.Packet[Any], codec: str, extradata: bytes | None) -> bool:
    """Whether a key frame's packet begins with a slice that refers to no other picture.

    Encoders may mark a picture as a key frame from which on the picture is refreshed bit by bit.

    Args:
        packet: A packet that the file marks as a key frame.
        codec: Canonical name of the codec; True for all but "h264" and "hevc", which have no such marks.
        extradata: The stream's configuration record, if its units have lengths instead of start codes.
    """
    if codec not in _LENGTH_AT:
        return True
    data, record, at = bytes(packet), extradata or b"", _LENGTH_AT[codec]
    has_lengths = len(record) > at and record[0] == 1
    units = _units_by_length(data, (record[at] & 3) + 1) if has_lengths else _units_by_start_code(data)
    for unit in islice(units, _MOST_UNITS):
        if codec == "hevc":
            kind = unit[0] >> 1 & 63
            if kind in _HEVC_PICTURES:
                return kind in _HEVC_RANDOM_ACCESS
        else:
            kind = unit[0] & 31
            if kind in (_H264_SLICE, _H264_IDR):
                return kind == _H264_IDR or _slice_type(unit[1:16]) % 5 in _H264_INTRA
    return False


def _units_by_length(data: bytes, size: int) -> Iterator[bytes]:
    """The beginnings of the units of a packet, each after its length."""
    at = 0
    while at + size < len(data):
        length = int.from_bytes(data[at : at + size], "big")
        if length:
            yield data[at + size : at + size + 16]
        at += size + length


def _units_by_start_code(data: bytes) -> Iterator[bytes]:
    """The beginnings of the units of a packet, each after a start code."""
    at = data.find(b"\0\0\1")
    while at >= 0 and at + 3 < len(data):
        yield data[at + 3 : at + 19]
        at = data.find(b"\0\0\1", at + 3)


def _slice_type(header: bytes) -> int:
    """The type in an H.264 slice header, after its first macroblock; -1 if it can't be read."""
    bits = "".join(f"{byte:08b}" for byte in header.replace(b"\0\0\3", b"\0\0"))
    value = -1
    for _ in range(2):
        zeros = bits.find("1")
        code = bits[zeros : 2 * zeros + 1]
        if not 0 <= zeros <= _LONGEST_CODE or len(code) <= zeros:
            return -1
        value, bits = int(code, 2) - 1, bits[2 * zeros + 1 :]
    return value
