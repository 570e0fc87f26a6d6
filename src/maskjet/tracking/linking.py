"""Correct track ids offline, once a whole file was read: fill missing ids, undo temporary id switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.jit import Ints
from maskjet.tracking.matching import NEVER, assign, box_iou
from maskjet.tracking.tracks import Floats
from maskjet.tracking.tuning import Tuning

ROW = np.dtype(
    [
        ("frame", np.int64),
        ("id", np.int64),
        ("class_id", np.int32),
        ("confidence", np.float32),
        ("xyxy", np.float32, 4),
        ("begin", np.int64),  # byte offset of its mask in the temporary file
        ("length", np.int64),  # bytes of its mask there; -1 without a mask
    ]
)
"""Row of the table of all detections of a file."""
_LEAST_IOU = 0.3  # of an instance's boxes in frames up to `Tuning.tentative_s` apart


def correct_ids(rows: NDArray[Any], times_s: Floats) -> None:
    """Give detections, `ROW` [n] in the order of frames, the id that their instance has in later frames.

    Rows without a track, -1, that lead to one get its id; the others get numbers below -1, one per instance. A young
    track that ends where an older one is found again was that one. `times_s` are float64 [frames], in seconds.
    """
    tracks, tuning = group_rows(rows), Tuning()
    first = {number: int(rows["frame"][own[0]]) for number, own in tracks.items()}
    before = np.full(len(rows), -1)  # frame of the same track's previous row
    for number, own in tracks.items():
        if number >= 0:
            before[own[1:]] = rows["frame"][own[:-1]]
    begins: dict[int, tuple[int, int]] = {}  # by id: earliest row so far, and the frame of the row before it
    becomes, seen, lowest = dict[int, int](), set[int](), -1
    for here in reversed(np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows["frame"])) + 1)):
        frame, ending = int(rows["frame"][here].max(initial=0)), list[int]()  # rows to be linked to a later track
        for row in here.tolist():
            number = rows["id"][row] = becomes.get(int(rows["id"][row]), int(rows["id"][row]))
            if number in seen or (number >= 0 and times_s[frame] - times_s[first[number]] > tuning.adopt_s):
                seen.add(number)
                begins[number] = row, int(before[row])
            else:
                ending.append(row)
        near = [
            each for each in begins.items() if times_s[rows["frame"][each[1][0]]] <= times_s[frame] + tuning.tentative_s
        ]
        begins, late = dict(near), [number for number, (row, _) in near if rows["frame"][row] > frame]
        fits = box_iou(_boxes(rows, [begins[number][0] for number in late]), _boxes(rows, ending))
        since = np.array([begins[number][1] for number in late])[:, None]
        starts = np.array([first[number] for number in rows["id"][ending].tolist()])
        fits[(rows["id"][ending] >= 0) & ((since < 0) | (since >= starts))] = 0
        chosen = assign(np.where(fits > _LEAST_IOU, fits, NEVER)).tolist()
        for j, row in enumerate(ending):
            number, lowest = int(rows["id"][row]), lowest - 1
            later = late[chosen[j]] if chosen[j] >= 0 else number if number >= 0 else lowest
            if number >= 0 and later != number:
                becomes[number] = later
            rows["id"][row] = later
            begins[later] = row, begins[later][1] if chosen[j] >= 0 else int(before[row])
            seen.add(later)


def group_rows(rows: NDArray[Any]) -> Mapping[int, Ints]:
    """Group row indices by id, in the order of frames."""
    order = np.argsort(rows["id"], kind="stable")
    ids, begins = np.unique(rows["id"][order], return_index=True)
    return dict(zip(ids.tolist(), np.split(order, begins[1:]), strict=False))


def _boxes(rows: NDArray[Any], chosen: Sequence[int]) -> Floats:
    return rows["xyxy"][list(chosen)].astype(np.float64)
