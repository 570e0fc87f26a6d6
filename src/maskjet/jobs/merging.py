"""Merging the parts of a job into a COCO data set or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from maskjet.errors import InputError, SourceError
from maskjet.files import is_same_file
from maskjet.jobs.parts import Parts
from maskjet.jobs.rows import FoundFrame, metadata, read_frames
from maskjet.media.sinks.coco import CocoJson
from maskjet.media.sinks.lines import JsonLines
from maskjet.media.sinks.sink import Sinks
from maskjet.media.source import Frame

_NO_PIXELS = np.empty((0, 0, 3), dtype=np.uint8)


@dataclass(frozen=True)
class Merged:
    """Counts of a merge."""

    frames: int
    """Frames and images written."""
    detections: int
    """Detections written."""
    left_out: int
    """Detections left out, as their box or confidence is not finite, which JSON can't express."""
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

    Lines are those of `maskjet run -o x.jsonl` over the same files. Images are numbered across segments, as in a
    folder, and "source" is the image's own path, as a part does not know its folder. In a COCO data set, image ids
    number all frames from 0.

    Args:
        out: The job's output, with segments.jsonl and parts.
        coco: Path of a COCO data set to write, .json.
        jsonl: Path of JSON lines to write, one per frame.
        incomplete: Whether to go on if segments have no part.

    Returns:
        Counts of what was written.

    Raises:
        InputError: Nothing is to be written, segments have no part, or parts have a row per detection, which leaves
            out frames without any.
        SourceError: The job's output or a part of it can't be read.
        OutputError: A file can't be written.
        MissingDependencyError: pyarrow is not installed.
    """
    if coco is None and jsonl is None:
        raise InputError("coco or jsonl must be a path, got neither.")
    if coco is not None and jsonl is not None and (coco == jsonl or is_same_file(coco, jsonl)):
        raise InputError(f"coco and jsonl must be two files, got {coco!r} for both.")
    parts = Parts(out)
    missing = {name for name, _ in parts.manifest() if not parts.had(name)}
    if missing and not incomplete:
        raise InputError(
            f"out must have a part for each segment, {len(missing):,} of {out!r} have none: run the same job again, "
            "which does those alone (failures.jsonl says why some failed), or merge with incomplete=True."
        )
    frames = detections = 0
    with ExitStack() as undo:
        lines = Sinks([] if jsonl is None else [JsonLines(jsonl)])
        undo.callback(lines.abandon)
        data_set = Sinks([] if coco is None else [CocoJson(coco)])
        undo.callback(data_set.abandon)
        for frame, each in _read(parts, missing):
            lines.write(frame, each.found)
            data_set.write(replace(frame, index=frames), each.found)
            frames += 1
            detections += len(each.found)
        lines.close()
        data_set.close()
        undo.pop_all()
    return Merged(frames, detections - lines.left_out, lines.left_out, len(missing))


def _read(parts: Parts, missing: set[str]) -> Iterator[tuple[Frame, FoundFrame]]:
    """Frames in the plan's order, numbered as by their sources, with their detections."""
    images = 0  # in the segments before
    for name, segment in parts.manifest():
        if name not in missing:
            positions = {} if segment.is_video else {file.path: i for i, file in enumerate(segment.files, images)}
            for each in _read_part(parts, name):
                if segment.is_video:
                    index, shown = each.index, f"{each.source}#{each.index}"
                else:
                    index, shown = _position_of(each, positions, parts.path_of(name)), each.source
                yield Frame(index, each.time_s, _NO_PIXELS, each.source, shown), each
        if not segment.is_video:
            images += len(segment.files)


def _position_of(frame: FoundFrame, positions: dict[str, int], path: str) -> int:
    if frame.source not in positions:
        raise SourceError(f"part must be of its segment, {path!r} has rows of {frame.source!r}: verify the job.")
    return positions[frame.source]


def _read_part(parts: Parts, name: str) -> Iterator[FoundFrame]:
    """Frames of one part, of which one row group at a time is in memory."""
    with parts.open(name) as file:
        about = metadata(file.schema_arrow)
        if about["rows"] != "frame":
            raise InputError(
                'rows must be "frame" to merge, these parts have a row per detection, which leaves out frames without '
                'any: run the job with rows="frame", or query the parts (docs/jobs.md).'
            )
        class_names = {int(class_id): str(named) for class_id, named in about.get("class_names", {}).items()}
        for group in range(file.num_row_groups):
            for batch in file.read_row_group(group).to_batches():
                yield from _checked(read_frames(batch, class_names), parts.path_of(name))


def _checked(frames: Iterator[FoundFrame], path: str) -> Iterator[FoundFrame]:
    """Pass frames on; name the part in errors."""
    try:
        yield from frames
    except InputError as error:
        raise SourceError(f"part must be sound, {path!r} is not: {error} Verify the job.") from error
