"""Offline smoothing of a file's tracks: fill gaps, correct ids, remove short-lived detections."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.host.files import naming
from maskjet.jit import Ints
from maskjet.masks import coco_rle
from maskjet.masks.strips import move_mask
from maskjet.tracking.linking import ROW, correct_ids, group_rows

_FRAME_S = 1 / 30  # assumed seconds between frames without timestamps
_IN_MEMORY = 1 << 26  # bytes of masks, beyond which they go to a file


def smooth(
    results: Iterable[tuple[Detections, float | None]],
    *,
    threshold: float = 0.0,
    longest_s: float = 0.6,
    shortest: int = 3,
) -> Iterator[Detections]:
    """Smooth the tracks of a file; reads all results before it yields any.

    What an instance was called before it had its id, or a while after it was found again, is corrected. Where a track
    has a gap, its box is interpolated, and the nearest mask is moved and scaled with it. What is seen in too few frames
    is removed, unless it is there in the first or the last one.

    Memory is 150 bytes per detection. Masks are kept as RLE, 64 MB in memory, more in a temporary file.

    Args:
        results: Tracked detections of each frame in order, with the frame's time in seconds; None is 1/30 s after the
            last.
        threshold: Detections up to this confidence are only kept where they continue a track.
        longest_s: Longest gap that is filled, in seconds.
        shortest: Least number of frames that an instance is in.

    Returns:
        The detections of each frame. `filled` tells those that have been added: first detections up to the threshold,
        then interpolated ones, of confidence 0 and the class of their track. `track_class_id` is by a vote over the
        whole track.

    Raises:
        InputError: An argument is not as above, or a mask is malformed.

    Examples:
        >>> import maskjet
        >>> from maskjet.tracking import smooth
        >>> model = maskjet.load("demo", device="cpu")
        >>> street = maskjet.traffic.Street(seed=3, size_hw=(360, 640))
        >>> images = [street.frame(index).image for index in range(3)]
        >>> found = [(found, index / 30) for index, (_, found) in enumerate(model.stream(images, track=True))]
        >>> missed = [found[0], (found[1][0][:0], 1 / 30), found[2]]
        >>> [bool(each.filled.any()) for each in smooth(missed)]
        [False, True, False]
    """
    for name, value in (("threshold", threshold), ("longest_s", longest_s), ("shortest", shortest)):
        if not value >= 0:
            raise InputError(f"{name} must be at least 0, got {value}.")
    file = _Recording(results)
    rows, is_weak = file.rows, file.rows["confidence"] <= np.float32(threshold)
    is_kept = ~is_weak | (rows["id"] >= 0)
    rows, is_weak, is_kept = rows[is_kept], is_weak[is_kept], is_kept[is_kept]
    correct_ids(rows, file.times_s)
    classes, gaps, ends = rows["class_id"].astype(np.int64), [], (0, len(file.times_s) - 1)
    for number, own in group_rows(rows).items():
        if np.count_nonzero(~is_weak[own]) < shortest and not np.isin(rows["frame"][own], ends).any():
            is_kept[own] = False
        elif number >= 0:
            voted, columns = np.unique(classes[own], return_inverse=True)
            classes[own] = voted[np.bincount(columns, rows["confidence"][own]).argmax()]
            gaps.append(file.find_gaps(rows, own, longest_s))
    missed = np.concatenate([*gaps, np.zeros((0, 3), np.int64)])
    return file.join(rows, classes, is_weak, is_kept, missed[np.argsort(missed[:, 0], kind="stable")])


class _Recording:
    """All results of a file: masks in a temporary file, the rest in memory."""

    def __init__(self, results: Iterable[tuple[Detections, float | None]]) -> None:
        self._masks: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed with this
        ending = ExitStack()
        ending.enter_context(suppress(OSError))  # closing fails again on a full disk, already reported
        ending.callback(self._masks.close)
        weakref.finalize(self, ending.close)
        self._frames: list[tuple[tuple[int, int], bool]] = []  # size (height, width), and whether there are masks
        self._class_names: dict[int, str] = {}
        parts, times_s, end = [np.zeros(0, ROW)], list[float](), 0
        for found, time_s in results:
            if found.track_id is None and len(found):
                raise InputError("results must be tracked, got no track_id: use model.stream(..., track=True).")
            rows = np.zeros(len(found), ROW)
            rows["frame"], rows["id"] = len(times_s), -1 if found.track_id is None else found.track_id
            rows["class_id"], rows["confidence"], rows["xyxy"] = found.class_id, found.confidence, found.xyxy
            if found.rle is not None:
                masks = [coco_rle.from_json(rle)["counts"] for rle in found.rle]
                rows["length"] = [len(mask) for mask in masks]
                rows["begin"] = end + np.cumsum(rows["length"]) - rows["length"]
                with naming(tempfile.gettempdir(), "TMPDIR"):
                    self._masks.writelines(masks)
                end += int(rows["length"].sum())
            parts.append(rows)
            times_s.append(time_s if time_s is not None else times_s[-1] + _FRAME_S if times_s else 0.0)
            self._frames.append((found.image_size, found.rle is not None))
            self._class_names |= found.class_names
        self.rows, self.times_s = np.concatenate(parts), np.array(times_s, np.float64)

    def find_gaps(self, rows: NDArray[Any], own: Ints, longest_s: float) -> Ints:
        """Frames to fill in a track with rows `own`: int64 [k, 3], frame, row before, row after."""
        frames, found = rows["frame"][own], [np.zeros((0, 3), np.int64)]
        is_gap = (np.diff(frames) > 1) & (np.diff(self.times_s[frames]) <= longest_s)
        for k in np.flatnonzero(is_gap).tolist():
            before, after = frames[k], frames[k + 1]
            times_s = self.times_s[before : after + 1]
            is_alike = len(set(self._frames[before : after + 1])) == 1
            if is_alike and (np.diff(times_s) > 0).all() and np.isfinite(rows["xyxy"][own[k : k + 2]]).all():
                missed = np.arange(before + 1, after)
                found.append(np.stack(np.broadcast_arrays(missed, own[k], own[k + 1]), axis=1))
        return np.concatenate(found)

    def join(
        self, rows: NDArray[Any], classes: Ints, is_weak: NDArray[np.bool_], is_kept: NDArray[np.bool_], gaps: Ints
    ) -> Iterator[Detections]:
        """Yield the detections of each frame: original ones, then weak ones, then interpolated ones."""
        begins = np.searchsorted(rows["frame"], np.arange(len(self.times_s) + 1))
        gap_begins = np.searchsorted(gaps[:, 0], np.arange(len(self.times_s) + 1))
        for frame, (size_hw, has_masks) in enumerate(self._frames):
            own = np.arange(*begins[frame : frame + 2])
            own = own[is_kept[own]]
            own = np.concatenate([own[~is_weak[own]], own[is_weak[own]]])
            missed = gaps[slice(*gap_begins[frame : frame + 2])]
            filling = [self._interpolate(rows, *gap) for gap in missed.tolist()]
            before = missed[:, 1]
            masks = [self._read(row, size_hw) for row in rows[own]] + [mask for _, mask in filling]
            ids, track_classes = np.concatenate([rows["id"][own], rows["id"][before]]), classes[np.append(own, before)]
            yield Detections(
                image_size=size_hw,
                xyxy=np.concatenate([rows["xyxy"][own], *(box[None] for box, _ in filling)]),
                confidence=np.append(rows["confidence"][own], np.zeros(len(missed), np.float32)),
                class_id=np.append(rows["class_id"][own], classes[before].astype(np.int32)),
                rle=masks if has_masks else None,
                class_names=self._class_names,
                track_id=np.maximum(ids, -1),
                track_class_id=track_classes,
                filled=np.append(is_weak[own], np.ones(len(missed), np.bool_)),
            )

    def _interpolate(
        self, rows: NDArray[Any], frame: int, before: int, after: int
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Interpolate a track's box between two rows, and move the mask of the nearer row with it."""
        ends = [before, after]
        first_s, last_s = self.times_s[rows["frame"][ends]]
        share = (self.times_s[frame] - first_s) / (last_s - first_s)
        boxes = rows["xyxy"][ends].astype(np.float64)
        box = (1 - share) * boxes[0] + share * boxes[1]
        nearer, (size_hw, has_masks) = int(share > 0.5), self._frames[frame]
        mask = self._read(rows[ends[nearer]], size_hw)
        return box.astype(np.float32), move_mask(mask, boxes[nearer], box) if has_masks else mask

    def _read(self, row: Any, size_hw: tuple[int, int]) -> dict[str, Any]:
        """Read the RLE of a row from the temporary file."""
        self._masks.seek(row["begin"])
        return {"size": list(size_hw), "counts": self._masks.read(row["length"])}
