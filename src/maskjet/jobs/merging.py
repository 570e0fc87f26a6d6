"""Merging the parts of a job into a COCO data set or JSON lines, with tracks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from maskjet.detections import join
from maskjet.errors import InputError, SourceError
from maskjet.host.files import is_same_file
from maskjet.host.printing import as_utf8
from maskjet.jobs.folders import LOCK
from maskjet.jobs.manifest import FAILURES, NOTES
from maskjet.jobs.parts import FOLDER, MANIFEST, Parts
from maskjet.jobs.rows import FoundFrame, metadata, read_frames
from maskjet.outputs.coco import CocoJson
from maskjet.outputs.lines import JsonLines
from maskjet.outputs.sink import Sink, Sinks
from maskjet.sources.source import Frame
from maskjet.tracking import Tracker

_MAKE_AGAIN = "Remove it, and run the same job again."
_NO_PIXELS = np.empty((0, 0, 3), dtype=np.uint8)


@dataclass(frozen=True)
class Merged:
    """Counts of a merge."""

    frames: int
    """Frames and images written."""
    detections: int
    """Detections written."""
    left_out: int
    """Detections left out of JSON because their box or confidence is not finite."""
    missing: int
    """Segments without a part."""

    def __str__(self) -> str:
        text = f"{self.frames:,} frames, {self.detections:,} detections"
        if self.left_out:
            text += f"; {self.left_out:,} detections that are not finite are left out"
        if self.missing:
            text += f"; {self.missing:,} segment{'s have' if self.missing > 1 else ' has'} no part"
        return text


def merge(out: str, *, coco: str | None = None, jsonl: str | None = None, incomplete: bool = False) -> Merged:
    """Join the parts of a job, in the order of its plan; memory does not grow with their number.

    Lines are those of `maskjet run -o x.jsonl` over the same files, with tracks if the job ran with `--track`. Images
    are numbered across segments, as in a folder, and "source" is the image's own path, as a part does not know its
    folder. In a COCO data set, image ids number all frames from 0.

    Args:
        out: The job's output, with segments.jsonl and parts.
        coco: Path of a COCO data set to write, .json.
        jsonl: Path of JSON lines to write, one per frame.
        incomplete: Whether to go on if segments have no part.

    Raises:
        InputError: Nothing is to be written, or segments have no part.
        SourceError: The job's output or a part of it can't be read.
        OutputError: A file can't be written.
    """
    outs = [path for path in (coco, jsonl) if path is not None]
    if not outs:
        raise InputError("coco or jsonl must be a path, got none.")
    if coco is not None and jsonl is not None and (coco == jsonl or is_same_file(coco, jsonl)):
        raise InputError(f"coco and jsonl must be files of their own, got {coco!r} twice.")
    for given, own in product(outs, (MANIFEST, FOLDER, FAILURES, NOTES, LOCK)):
        if Path(given).resolve().is_relative_to(Path(out, own).resolve()):
            raise InputError(f"coco and jsonl must be none of the job's own files, got {given!r}.")
    parts = Parts(out)
    missing = {name for name, _ in parts.manifest() if not parts.had(name)}
    if missing and not incomplete:
        raise InputError(
            f"out must have a part for each segment, {len(missing):,} of {out!r} have none: run the same job again, "
            "which does those alone (failures.jsonl says why some failed), or merge with incomplete=True."
        )
    frames = detections = 0
    with ExitStack() as undo:
        sinks: list[Sink] = []
        for path, make in ((jsonl, JsonLines), (coco, partial(CocoJson, counts_images=True))):
            if path is not None:
                sinks.append(make(path))
                undo.callback(sinks[-1].abandon)  # does nothing once it is closed
        texts = Sinks(sinks)
        for frame, each in _read(parts, missing):
            texts.write(frame, each.found)
            frames += 1
            detections += len(each.found)
        texts.close()
    return Merged(frames, detections - texts.left_out, texts.left_out, len(missing))


def _track(frame: FoundFrame, tracker: Tracker) -> FoundFrame:
    """Track a frame; the result has track ids, and no weak detections."""
    tracked = tracker.update(join(frame.found, frame.weak or frame.found[:0]), frame.time_s)
    return replace(frame, found=tracked[: len(frame.found)], weak=None)


def _read(parts: Parts, missing: set[str]) -> Iterator[tuple[Frame, FoundFrame]]:
    """Yield frames with detections, in the plan's order, numbered as in their sources."""
    images = 0  # images in earlier segments
    trackers: dict[str, Tracker] = {}  # of the current video, by its path
    for name, segment in parts.manifest():
        if name not in missing:
            paths = [] if segment.is_video else [as_utf8(file.path) for file in segment.files]
            positions = {path: i for i, path in enumerate(paths, images)}
            for each in _read_part(parts, name, trackers if segment.is_video else None):
                if segment.is_video:
                    index, shown = each.index, f"{each.source}#{each.index}"
                else:
                    index, shown = _position_of(each, positions, parts.path_of(name)), each.source
                yield Frame(index, each.time_s, _NO_PIXELS, each.source, shown), each
        if not segment.is_video:
            images += len(segment.files)


def _position_of(frame: FoundFrame, positions: dict[str, int], path: str) -> int:
    if frame.source not in positions:
        raise SourceError(f"part must be of its segment, {path!r} has rows of {frame.source!r}. {_MAKE_AGAIN}")
    return positions[frame.source]


def _read_part(parts: Parts, name: str, trackers: dict[str, Tracker] | None) -> Iterator[FoundFrame]:
    """Yield the frames of a part, one row group at a time in memory; tracked if the job tracks."""
    with parts.open(name) as file, _naming(parts.path_of(name)):
        about = metadata(file.schema_arrow)
        threshold = about.get("track_threshold")
        class_names = {int(class_id): str(named) for class_id, named in about.get("class_names", {}).items()}
        for group in range(file.num_row_groups):
            for batch in file.read_row_group(group).to_batches():
                for frame in read_frames(batch, class_names):
                    if trackers is None or threshold is None:
                        yield frame
                        continue
                    if frame.source not in trackers:
                        trackers.clear()
                        trackers[frame.source] = Tracker(threshold=threshold)
                    yield _track(frame, trackers[frame.source])


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the part in errors about its content."""
    try:
        yield
    except InputError as error:
        raise SourceError(f"part must be sound, {path!r} is not: {error} {_MAKE_AGAIN}") from error
