"""What every source is: frames in order, each with its index, read once by one reader."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from maskjet.errors import InputError
from maskjet.media.colours import Look


@dataclass(frozen=True, eq=False)
class Frame:
    """One image of a source."""

    index: int
    """Position in the source, from 0; frames that could not be decoded are counted."""
    time_s: float | None
    """When it is shown, in seconds; None where the source has no clock."""
    image: NDArray[np.uint8]
    """uint8 [H, W, 3], RGB."""
    source: str
    """What the source was opened with."""
    name: str
    """The file it comes from; for a video its name and the index."""
    stream: int = 0
    """Position of its source among those that run side by side, from 0."""
    index_is_exact: bool = True
    """False where frames may be missing before it and can't be counted: the index counts the known ones."""


class Source(ABC):
    """Frames in order, to be iterated over once; a context manager.

    Args:
        name: What it was opened with.

    Attributes:
        kind: What frames are read from.
        name: What it was opened with.
        length: How many frames it should have; None if that can't be known.
        states_end: Whether the source itself states how many frames or seconds it has, so that an end that comes too
            early is seen; raw streams, transport streams and fragmented MP4 do not.
        fps: Frames per second; None where there is no clock.
        size_hw: (height, width) of the first frame; None where that is not known before it is read.
        look: What its colours and pixels mean; None for images, and before the first frame of a video is there.
        files: The files it reads, as far as they are known before.
        is_live: Whether frames come as they happen, from a camera or a stream without an end.
        frames_seen: How many frames went by, those in `bad_frames` included: the next one's index.
        index_is_exact: Whether that is known, as `Frame.index_is_exact`.
        bad_frames: (index, reason) of what was left out: a frame that could not be decoded, or a run of frames that
            are missing, with the first one's index and their number in the reason.
        frames_dropped: How many frames were left out because newer ones had come.
    """

    kind: ClassVar[Literal["image", "list", "video"]]
    length: int | None = None
    states_end: bool = True
    fps: float | None = None
    size_hw: tuple[int, int] | None = None
    look: Look | None = None
    files: Sequence[Path] = ()
    is_live: bool = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.frames_seen = 0
        self.index_is_exact = True
        self.bad_frames: list[tuple[int, str]] = []
        self.frames_dropped = 0
        self._reader = threading.Lock()  # taken by whoever reads first, and never given back

    def __iter__(self) -> Iterator[Frame]:
        """The frames, for one reader.

        Raises:
            InputError: Somebody reads it already, or has read it.
        """
        if not self._reader.acquire(blocking=False):
            raise InputError(f"source must be read once, {self.name!r} is or was read already: open it once more.")
        return self._read()

    @abstractmethod
    def _read(self) -> Iterator[Frame]:
        """The frames."""

    def close(self) -> None:  # noqa: B027 - most sources hold nothing open
        """Let go of files and devices; may be called twice, and while another thread reads."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _skip(self, reason: str, count: int = 1) -> None:
        """Count frames that are left out."""
        self.bad_frames.append((self.frames_seen, reason))
        self.frames_seen += count
