"""Places in a video where decoding may begin, found without decoding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A key frame from which on all frames shown later can be decoded."""

    index: int
    """Index of the frame in the whole video."""
    pts: int
    """Its presentation time, in ticks of its stream."""
    packets: int
    """Packets of the video before its own, in the order of the file."""
