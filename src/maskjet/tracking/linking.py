"""Corrects ids backwards, once a whole file was seen: of what had none yet, or another one for a while."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.tracking.matching import assign, box_iou
from maskjet.tracking.strips import Ints
from maskjet.tracking.tracks import Floats
from maskjet.tracking.tuning import Tuning

ROW = np.dtype(
    [
        ("frame", np.int64),
        ("id", np.int64),
        ("class_id", np.int32),
        ("confidence", np.float32),
        ("xyxy", np.float32, 4),
        ("begin", np.int64),  # of its mask in the file of masks, in bytes
        ("length", np.int64),  # of its mask there, in bytes; -1 without a mask
    ]
)
"""A detection among those of a file."""
_LEAST_IOU = 0.3  # of a thing's boxes in two frames at most `Tuning.tentative_s` apart
_TUNING = Tuning()


def correct_ids(rows: NDArray[Any], times_s: Floats) -> None:
    """Give rows the ids that their things have later on.

    Rows without a track, -1, that lead to one get its id; the others get numbers below -1, one for each thing. A young
    track that ends where an older one is found again was that one.

    Args:
        rows: `ROW` [n] in the order of frames, changed.
        times_s: float64 [frames]: times of the frames in seconds.
    """
    _number_loose_rows(rows, times_s)
    tracks = group_rows(rows)
    ended: dict[int, list[int]] = defaultdict(list)
    for number, own in tracks.items():
        ended[int(rows["frame"][own[-1]])].append(number)
    becomes: dict[int, int] = {}
    first = {number: int(own[0]) for number, own in tracks.items()}
    for _, number, before, row in sorted(_find_begins(rows, tracks)):
        while True:
            near = [
                other
                for frame in _frames_before(int(rows["frame"][row]), before, times_s)
                for other in ended.get(frame, ())
                if other not in becomes
                and rows["frame"][first[other]] > before
                and (other < 0 or (before >= 0 and _is_young(rows[first[other]], frame, times_s)))
            ]
            ends = [tracks[other][-1] for other in near]
            overlaps = box_iou(rows["xyxy"][ends].astype(np.float64), rows["xyxy"][[row]].astype(np.float64))[:, 0]
            if not (overlaps > _LEAST_IOU).any():
                break
            other = near[int(overlaps.argmax())]
            becomes[other], row = number, first[other]
        if before < 0:
            first[number] = row
    for number in becomes:
        own = tracks[number]
        while number in becomes:
            number = becomes[number]
        rows["id"][own] = number


def group_rows(rows: NDArray[Any]) -> Mapping[int, Ints]:
    """The positions of each id's rows, in the order of frames."""
    order = np.argsort(rows["id"], kind="stable")
    ids, begins = np.unique(rows["id"][order], return_index=True)
    return dict(zip(ids.tolist(), np.split(order, begins[1:]), strict=False))


def _number_loose_rows(rows: NDArray[Any], times_s: Floats) -> None:
    """Give rows without a track numbers below -1, the same to those of a thing in frames that are near."""
    loose, last, lowest = np.flatnonzero(rows["id"] < 0), np.zeros(0, np.int64), -1
    for here in np.split(loose, np.flatnonzero(np.diff(rows["frame"][loose])) + 1):
        if not len(here):
            return
        last = last[times_s[rows["frame"][here[0]]] - times_s[rows["frame"][last]] <= _TUNING.tentative_s]
        i, j = assign(box_iou(rows["xyxy"][last].astype(np.float64), rows["xyxy"][here].astype(np.float64)), _LEAST_IOU)
        rows["id"][here] = lowest - 1 - np.arange(len(here))
        lowest -= len(here)
        rows["id"][here[j]] = rows["id"][last[i]]
        last = np.append(np.delete(last, i), here)


def _find_begins(rows: NDArray[Any], tracks: Mapping[int, Ints]) -> Iterator[tuple[int, int, int, int]]:
    """Where tracks with an id begin, or go on after frames without them: frame, id, the frame before or -1, row."""
    for number, own in tracks.items():
        if number >= 0:
            frames = rows["frame"][own]
            for k in (0, *(np.flatnonzero(np.diff(frames) > 1) + 1).tolist()):
                yield int(frames[k]), number, int(frames[k - 1]) if k else -1, int(own[k])


def _frames_before(frame: int, end: int, times_s: Floats) -> Iterator[int]:
    """The frames before one, down to another, in which a thing may have been seen last."""
    for earlier in range(frame - 1, end, -1):
        if times_s[frame] - times_s[earlier] > _TUNING.tentative_s:
            return
        yield earlier


def _is_young(first: Any, frame: int, times_s: Floats) -> bool:
    """Whether a track ended so early that it may have been an older one."""
    return bool(times_s[frame] - times_s[first["frame"]] <= _TUNING.adopt_s)
