"""The scans of a JPEG, counted in one compiled call that lets other threads work."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maskjet.jit import compiled
from maskjet.media.image_headers import MOST_PARTS


def jpeg_scans(data: bytes) -> tuple[int, int | None]:
    """The number of a JPEG's scans, and the position of its end marker, not of a thumbnail's or an appended video's.

    The position is None if there is no such marker within MOST_PARTS segments.
    """
    scans, end = _count(np.frombuffer(data, dtype=np.uint8))
    return scans, None if end < 0 else end


@compiled("UniTuple(int64, 2)(Array(uint8, 1, 'C', True))")
def _count(data: NDArray[np.uint8]) -> tuple[int, int]:
    """As `jpeg_scans`; -1 in place of None."""
    scans, position = 0, 2
    for _ in range(MOST_PARTS):
        while position + 1 < len(data):
            marker = data[position + 1]
            # Neither a stuffed zero nor a marker without a length.
            if data[position] == 0xFF and (0x02 <= marker <= 0xCF or 0xD8 <= marker <= 0xFE):
                break
            position += 1
        if position + 1 >= len(data):
            break
        if data[position + 1] == 0xD9:
            return scans, position
        scans += data[position + 1] == 0xDA
        start = position + 2
        if start + 1 >= len(data):
            break
        position = start + (int(data[start]) << 8 | int(data[start + 1]))
    return scans, -1
