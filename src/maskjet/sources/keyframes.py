"""Cut videos into parts at key frames; frames keep their indices in the whole video."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from maskjet.errors import InputError
from maskjet.sources.decoding import ON_CPU, Decoding
from maskjet.sources.selection import Selection, select_frames
from maskjet.sources.source import Source
from maskjet.sources.video_decoder import CannotEnterError
from maskjet.sources.video_index import Entry, find_entries
from maskjet.sources.videos import open_video_part, open_video_source

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
        open_video_part(name, Selection(start=entry.index, stop=entry.index + 1), ON_CPU, entry).close()
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
        return open_video_source(name, Selection(every), decoding)
    stop = None if part.count is None else part.first + part.count
    selection = Selection(every, part.first, stop=stop, phase=0)
    if stop is not None and selection.first >= stop:
        return None
    return open_video_part(name, selection, decoding, part.entry)
