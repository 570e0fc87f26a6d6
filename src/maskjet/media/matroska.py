"""Position of the first cluster, which holds the first frames, of a Matroska or WebM file.

FFmpeg skips unreadable bytes up to the next cluster without reporting them. Between frames, times and byte positions
reveal the loss. Before the first frame only the file's header does: its elements follow one another without gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

_EBML, _SEGMENT, _CLUSTER = 0x1A45DFA3, 0x18538067, 0x1F43B675
_BEFORE_CLUSTERS = {
    0x114D9B74,  # seek head
    0x1549A966,  # segment information
    0x1654AE6B,  # tracks
    0x1254C367,  # tags
    0x1C53BB6B,  # index
    0x1941A469,  # attachments
    0x1043A770,  # chapters
    0xEC,  # void
    0xBF,  # checksum
}


def first_cluster(path: Path) -> int | None:
    """Byte position of the first cluster; None if the header does not lead to one."""
    with path.open("rb") as file:
        while True:
            start = file.tell()
            element, size = _read_number(file, keeps_marker=True), _read_number(file)
            if element == _CLUSTER:
                return start
            if element == _EBML or element in _BEFORE_CLUSTERS:
                if size is None:
                    return None
                file.seek(size, 1)
            elif element != _SEGMENT:
                return None


def _read_number(file: BinaryIO, *, keeps_marker: bool = False) -> int | None:
    """Read a variable-length integer, whose first set bit gives its length, 1 to 8 bytes; None if there is none."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    number = int.from_bytes(first + file.read(length - 1), "big")
    return number if keeps_marker else number & ((1 << 7 * length) - 1)
