"""Detecting on one segment: its frames become the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from maskjet import limits
from maskjet.checks import check_count
from maskjet.errors import InputError, SourceError, translate_errors
from maskjet.jobs import storage
from maskjet.jobs.rows import FoundFrame, TableBuilder, arrow
from maskjet.jobs.segments import Segment, SourceFile
from maskjet.sources.ahead import Encoded, load_ahead, read_encoded
from maskjet.sources.keyframes import CannotEnterError, Entry, VideoPart, open_part
from maskjet.sources.source import Frame, Source
from maskjet.tiling.layout import UNCUT, Tiling

if TYPE_CHECKING:
    import pyarrow

    from maskjet.detections import Detections
    from maskjet.model import Model
    from maskjet.sources.decoding import Decoding


def process(
    segment: Segment,
    model: Model,
    *,
    every: int = 1,
    track: bool = False,
    tiling: Tiling = UNCUT,
    batch: int | None = None,
    decoding: Decoding | None = None,
) -> pyarrow.Table:
    """Detect on a segment's frames; deterministic: the same table, bit for bit, on the same kind of device.

    Batches are formed by the order of frames alone, never by timing (`whole_batches` of `Model.stream`).

    Args:
        segment: The video's frames, or the images.
        model: The model, with the thresholds and classes that it was loaded with.
        every: Take one frame of a video in this many: those whose index is a multiple of it.
        track: Whether frames of videos have weaker detections, too, in columns of their own, for `merge` to track.
        tiling: How frames are cut into tiles, a `maskjet.tiling.layout.Tiling`.
        batch: Most frames that the network sees at once; None is 1 on a CPU, and else the model's `EngineConfig.batch`.
        decoding: Where videos and JPEGs are decoded; None is `Model.decoding()`.

    Returns:
        A row per frame, also where nothing was found, in the order of the video or of the segment's files; docs/jobs.md
        has the columns. The metadata lists frames and images that can't be decoded as bad_frames.

    Raises:
        InputError: An argument is not as above.
        SourceError: A file can't be read, or has changed since the segment was planned.
        DeviceError: The device failed on a frame.
    """
    arrow()
    check_count("every", every)
    if batch is None:
        batch = 1 if model.config.resolve_device().type == "cpu" else model.config.batch
    streaming = {"batch": batch, "whole_batches": True, **asdict(tiling)}
    decoding = decoding or model.decoding()
    for file in segment.files:
        storage.check_unchanged(file)
    names = {str(class_id): name for class_id, name in model.spec.class_names.items()}
    about: dict[str, Any] = {"class_names": names, "segment": segment.as_dict()}
    threshold = model.tracker().threshold if track else None
    if track:
        about["track_threshold"] = threshold
    builder = partial(TableBuilder, with_weak=track, **about)
    if segment.is_video:
        table = _process_video(segment, model, builder, streaming, every=every, threshold=threshold, decoding=decoding)
    else:
        table = _process_images(segment, model, builder, streaming, decoding)
    for file in segment.files:
        storage.check_unchanged(file)
    return table


def _process_video(
    segment: Segment,
    model: Model,
    make_builder: Callable[[], TableBuilder],
    streaming: dict[str, Any],
    *,
    every: int,
    threshold: float | None,
    decoding: Decoding,
) -> pyarrow.Table:
    """The table of a video's frames; a threshold parts detections from the weaker ones that a tracker needs."""
    (file,) = segment.files

    def read(path: str, entry: Entry | None) -> pyarrow.Table:
        builder = make_builder()
        frames = VideoPart(segment.first, segment.count, entry)
        source = open_part(path, frames, every=every, decoding=decoding)
        if source is None:
            return builder.table()
        for frame, found in _detect(model, source, streaming | {"weak": threshold is not None}):
            weak = None
            if threshold is not None:
                is_reported = found.confidence > np.float32(threshold)
                found, weak = found[is_reported], found[~is_reported]
            builder.add(FoundFrame(file.path, frame.index, frame.time_s, found, weak))
        # Reasons name the file that was read, which may be a temporary copy.
        bad_frames = [[index, reason.replace(path, file.path)] for index, reason in source.bad_frames]
        return builder.table(bad_frames=bad_frames)

    with storage.local_copy(file) as path:
        if segment.entry is not None:
            with suppress(CannotEnterError):  # drop these rows; from the start of the file every index is exact
                return read(path, segment.entry)
        return read(path, None)


def _process_images(
    segment: Segment,
    model: Model,
    make_builder: Callable[[], TableBuilder],
    streaming: dict[str, Any],
    decoding: Decoding,
) -> pyarrow.Table:
    images, builder = _Images(segment, decoding), make_builder()
    for frame, found in _detect(model, images, streaming):
        builder.add(FoundFrame(frame.source, 0, None, found))
    bad_frames = [[segment.files[position].path, reason] for position, reason in images.bad_frames]
    return builder.table(bad_frames=bad_frames)


def _detect(model: Model, source: Source, streaming: dict[str, Any]) -> Iterator[tuple[Frame, Detections]]:
    with source, closing(model.stream(source, **streaming)) as results:
        yield from results


class _Images(Source):
    """The images of a segment; a frame's index is the image's position among the segment's files."""

    kind = "list"

    def __init__(self, segment: Segment, decoding: Decoding) -> None:
        super().__init__(segment.name)
        self._segment_files, self._decoding = segment.files, decoding
        self.length = len(segment.files)

    def _read(self) -> Iterator[Frame]:
        reads = (partial(_read_image, file) for file in self._segment_files)
        with closing(load_ahead(reads, self._decoding, self._fall_back)) as loaded:
            for position, (file, image) in enumerate(zip(self._segment_files, loaded, strict=True)):
                self.frames_seen += 1
                if isinstance(image, _StoreError):
                    raise image
                if isinstance(image, InputError):
                    self.bad_frames.append((position, str(image)))
                else:
                    yield Frame(position, None, image, file.path, file.path)


class _StoreError(SourceError):
    """An object can't be read from its store, which may be transient: retry the segment."""


def _read_image(file: SourceFile) -> Encoded:
    """Read an image's file or object; raises SourceError, of a store _StoreError, if it can't be read."""
    if not storage.is_remote(file.path):
        return read_encoded(file.path, "image")
    limits.check("image_bytes", file.size, f"{file.path!r} has", SourceError)
    with translate_errors(_StoreError, f"source must be readable, {file.path!r} is not"):
        system, path = storage.resolve(file.path, error=_StoreError)
        with system.open(path, "rb") as stream:
            return Encoded(stream.read(), repr(file.path))
