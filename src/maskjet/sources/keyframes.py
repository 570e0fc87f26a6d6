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
    """Cut a video into parts that begin at key frames, and last for so many seconds at least but for the last one.

    The parts joined are the whole video; only two key frames are decoded. There are at most 16 where seeking finds no
    packets in the file's format, as each is read from the beginning, and one if the index of no key frame is certain.
    Raises SourceError if the video can't be opened.
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
    """Open a part of a video: its frames whose index in the whole video is a multiple of `every`, None without any.

    Frames have the index, time and pixels that they have in the whole video. CannotEnterError, also while they are
    read, means that the part's entry does not hold: drop the frames that came, and open the part without its entry,
    which is always exact, but decodes from the beginning. Raises InputError for what `cut_video` does not give, else as
    `open_video_source`.
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
