"""Cut videos into parts at key frames; frames keep their indices in the whole video."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from maskjet.errors import InputError
from maskjet.sources.decoding import ON_CPU, Decoding
from maskjet.sources.frames import open_source
from maskjet.sources.selection import Selection, select_frames
from maskjet.sources.source import Frame, Source
from maskjet.sources.video_index import Entry, find_entries
from maskjet.sources.videos import CannotEnterError, VideoSource

if TYPE_CHECKING:
    import av

__all__ = ["CannotEnterError", "Entry", "VideoPart", "cut_video", "open_part"]

_MOST_COUNTED = 15  # most entries, if each is reached by reading from the start of the file


@dataclass(frozen=True)
class VideoPart:
    """Consecutive frames of a video."""

    first: int
    """Index of the part's first frame in the whole video."""
    count: int | None
    """Number of frames in the part, bad ones included; None for all up to the end."""
    entry: Entry | None
    """Key frame `first`, at which decoding begins; None to decode all frames before the part, too."""


def cut_video(name: str, *, seconds: float = 10.0) -> list[VideoPart]:
    """Cut a video into parts that begin at key frames; decodes only two key frames.

    The parts joined are the whole video: `open_part` gives the frames that `open_source` gives.

    Args:
        name: Path of the video.
        seconds: Least length of a part, above 0, but for the last one; it ends at the next key frame.

    Returns:
        The parts in order; the last one goes to the end. At most 16 if reading begins at the beginning of the file for
        each, as seeking finds no packets in its format. One part, if the index of no key frame is certain.

    Raises:
        SourceError: The video can't be opened.
    """
    entries = find_entries(name, seconds, most_counted=_MOST_COUNTED)
    if not any(_holds(name, entry) for entry in (*entries[:1], *entries[-1:])):
        entries = []
    firsts = [0, *(entry.index for entry in entries)]
    counts = [*(after - before for before, after in pairwise(firsts)), None]
    return list(map(VideoPart, firsts, counts, [None, *entries]))


def _holds(name: str, entry: Entry) -> bool:
    """Whether decoding can begin at an entry; not in streams with gradual intra refresh."""
    try:
        _PartSource(name, VideoPart(entry.index, 1, entry)).close()
    except CannotEnterError:
        return False
    return True


def open_part(name: str, part: VideoPart, *, every: int = 1, decoding: Decoding = ON_CPU) -> Source | None:
    """Open a part of a video: its frames whose index in the whole video is a multiple of `every`.

    Args:
        name: Path of the video.
        part: A part of `cut_video`, or one without its entry, which is always exact, but decodes from the beginning.
        every: Distance between two frames given, in frames.
        decoding: Where it is decoded.

    Returns:
        The opened source, whose frames have the index, time and pixels that they have in the whole video; None if the
        part has no frame at a multiple of `every`.

    Raises:
        CannotEnterError: The part's entry does not hold; also while frames are read. Drop the frames that came, and
            open the part without its entry.
        SourceError: The video can't be opened.
        InputError: `part` or `every` is out of range.
        DeviceError: The GPU failed; also while frames are read.
    """
    every = select_frames(every).every
    is_placed = part.entry is None or (part.entry.index == part.first and part.entry.packets >= 0)
    if part.first < 0 or (part.count is not None and part.count < 1) or not is_placed:
        raise InputError(f"part must be one of cut_video's, got {part!r}.")
    if part == VideoPart(0, None, None):
        return open_source(name, every=every, decoder=decoding)
    if part.count is not None and _first_wanted(part, every) >= part.first + part.count:
        return None
    return _PartSource(name, part, every=every, decoding=decoding)


def _first_wanted(part: VideoPart, every: int) -> int:
    """The first index in the part that is a multiple of `every`."""
    return -(-part.first // every) * every


class _PartSource(VideoSource):
    """The frames of a part whose index is a multiple of `every`; it may have none.

    With an entry, decoding begins there, and the first doubt ends it: damage, a lost frame, a packet without a picture,
    times out of order. So `bad_frames` stays empty. Without an entry, `bad_frames` lists all frames of the part that
    are bad. Arguments and errors are those of `open_part`.
    """

    def __init__(self, name: str, part: VideoPart, *, every: int = 1, decoding: Decoding = ON_CPU) -> None:
        self._part, self._entry, self._every = part, part.entry, every
        self._stop = math.inf if part.count is None else part.first + part.count
        self._last_pts = -math.inf
        super().__init__(name, Selection(start=part.first), decoding)

    def _open_at_start(self) -> Frame | None:
        return self._open()

    def _take_facts(self) -> None:
        super()._take_facts()
        end = self.length if self._part.count is None else self._part.first + self._part.count
        self.length = None if end is None else len(range(_first_wanted(self._part, self._every), end, self._every))
        self.fps = self.fps and self.fps / self._every

    def _take_no_frame(self) -> None:
        """Accept a part without selected frames."""

    def _take_start(self, index: int) -> None:
        """Do nothing: `_take_facts` has adapted the metadata."""

    def _next(self) -> Frame | None:
        frame = super()._next()
        if frame is None and not self._is_closed:
            if self.frames_seen < self._stop < math.inf:
                self._doubt(f"the video ends at frame {self.frames_seen}")
            self.bad_frames = [bad for bad in self.bad_frames if self._part.first <= bad[0] < self._stop]
            if self._part.count is not None:
                self.frames_seen = min(self.frames_seen, self._part.first + self._part.count)
        return frame

    def _is_wanted(self, index: int, time_s: float | None) -> bool:
        return super()._is_wanted(index, time_s) and index < self._stop and index % self._every == 0

    def _lose_before(self, picture: av.VideoFrame | None) -> None:
        first_due = self._losses.first_due
        if first_due is not None and (picture is None or picture.pts is None or first_due < picture.pts):
            self._doubt("a packet gives no picture")
        super()._lose_before(picture)
        if picture is not None:
            if picture.pts is None or picture.pts <= self._last_pts:
                self._doubt("times are missing or out of order")
            self._last_pts = -math.inf if picture.pts is None else picture.pts

    def _skip(self, reason: str, count: int = 1) -> None:
        self._doubt(reason)
        super()._skip(reason, count)

    def _doubt(self, cause: str) -> None:
        """Raise if the part is read from an entry: its frames may differ from those of the whole video."""
        if self._entry is not None:
            raise self._refusal(self._entry, cause)
