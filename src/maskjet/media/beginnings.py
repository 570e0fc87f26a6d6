"""Whether a transport stream or Flash video lacks anything before its first frame.

FFmpeg skips unreadable bytes before the first frame without reporting them.
"""

from __future__ import annotations

import struct
from pathlib import Path

_TS_SYNC, _TS_SIZES = 0x47, (188, 192, 204)
_TS_SEARCHED = 1 << 22  # bytes; a first frame is smaller
_FLV_TYPES = {8, 9, 18}  # sound, video, script
_FLV_HEADER, _FLV_TAG, _FLV_BACK = 9, 11, 4  # bytes of the file's header, a tag's, and the size after a tag


def transport_starts_whole(path: Path, packet_id: int) -> bool:
    """Whether the packets with this PID begin with the start of a frame and are complete up to the third frame.

    FFmpeg flags damage on the frame before the damaged one, so it can flag none before the second frame.
    """
    with path.open("rb") as file:
        data = file.read(_TS_SEARCHED)
    found = (
        (at, size) for size in _TS_SIZES for at in range(size) if set(data[at : at + 5 * size : size]) == {_TS_SYNC}
    )
    first, size = next(found, (0, _TS_SIZES[0]))
    counter: int | None = None
    starts = 0
    for at in range(first, len(data) - 3, size):
        if data[at] != _TS_SYNC:
            return False
        is_ours = (data[at + 1] & 0x1F) << 8 | data[at + 2] == packet_id
        if not is_ours or not data[at + 3] & 0x10:  # the counter advances only with a payload
            continue
        is_start = bool(data[at + 1] & 0x40)
        if not is_start if counter is None else data[at + 3] & 15 not in (counter, (counter + 1) % 16):
            return False
        counter = data[at + 3] & 15
        starts += is_start
        if starts == 3:
            break
    return True


def flash_starts_whole(path: Path, position: int) -> bool:
    """Whether intact tags lead from a Flash video's header to the tag of its first frame, at `position`."""
    with path.open("rb") as file:
        at = _FLV_HEADER + _FLV_BACK
        while at < position:
            file.seek(at)
            tag = file.read(_FLV_TAG)
            if len(tag) < _FLV_TAG or tag[0] & 31 not in _FLV_TYPES or any(tag[8:]):
                return False
            at += _FLV_TAG + int.from_bytes(tag[1:4], "big") + _FLV_BACK
    return at == position


def flash_has_its_size(path: Path) -> bool:
    """Whether a Flash video has the file size it states; True if it states none."""
    with path.open("rb") as file:
        _, key, value = file.read(1 << 16).partition(b"\x00\x08filesize\x00")
    stated = struct.unpack(">d", value[:8])[0] if key and len(value) >= 8 else 0
    return not stated > 0 or stated == path.stat().st_size
