"""Detecting on one segment: its frames become the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from maskjet import limits
from maskjet.errors import InputError, SourceError, translate_errors
from maskjet.jobs import storage
from maskjet.jobs.rows import FoundFrame, TableBuilder, arrow
from maskjet.jobs.segments import Segment, SourceFile
from maskjet.sources.ahead import Encoded, image_threads, load_ahead, read_encoded
from maskjet.sources.image_headers import stated_size_hw
from maskjet.sources.keyframes import CannotEnterError, Entry, VideoPart, open_part
from maskjet.sources.source import Frame, Source
from maskjet.spec import TwoStageSpec
from maskjet.tiling.layout import UNCUT, Tiling

if TYPE_CHECKING:
    import pyarrow

    from maskjet.detections import Detections
    from maskjet.model import Model
    from maskjet.sources.decoding import Decoding

_HEAD_BYTES = 2**16  # bytes read of an image; enough for nearly all headers


def process(
    segment: Segment,
    model: Model,
    *,
    every: int = 1,
    detect: int = 1,
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
        detect: Detect on every so manieth of these, and on the segment's first and last; see `Model.stream`.
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
    if batch is None:
        batch = 1 if model.config.resolve_device().type == "cpu" else model.config.batch
    streaming = {"batch": batch, "whole_batches": True, **asdict(tiling)}
    decoding = decoding or model.decoding()
    for file in segment.files:
        storage.check_unchanged(file)
    names = {str(class_id): name for class_id, name in model.spec.class_names.items()}
    about: dict[str, Any] = {"class_names": names, "segment": asdict(segment)}
    threshold = model.tracker().threshold if track else None
    if track:
        about["track_threshold"] = threshold
    builder = partial(TableBuilder, with_weak=track, with_moved=segment.is_video and detect > 1, **about)
    if segment.is_video:
        streaming["detect"] = detect
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
    # Torchvision's detectors take batches of one size; for others the headers need not be read.
    images = _Images(segment, decoding, is_grouped=streaming["batch"] > 1 and isinstance(model.spec, TwoStageSpec))
    found = {frame.index: each for frame, each in _detect(model, images, streaming)}
    builder = make_builder()
    for position in sorted(found):
        builder.add(FoundFrame(segment.files[position].path, 0, None, found[position]))
    bad_frames = [[segment.files[position].path, reason] for position, reason in sorted(images.bad_frames)]
    return builder.table(bad_frames=bad_frames)


def _detect(model: Model, source: Source, streaming: dict[str, Any]) -> Iterator[tuple[Frame, Detections]]:
    with source, closing(model.stream(source, **streaming)) as results:
        yield from results


class _Images(Source):
    """The images of a segment, indexed by their place; if grouped, those of one size follow one another."""

    kind = "list"

    def __init__(self, segment: Segment, decoding: Decoding, *, is_grouped: bool) -> None:
        super().__init__(segment.name)
        self._segment_files, self._decoding, self._is_grouped = segment.files, decoding, is_grouped
        self.length = len(segment.files)

    def _read(self) -> Iterator[Frame]:
        files = self._segment_files
        order = list(range(len(files)))
        if self._is_grouped:
            sizes = list(image_threads().map(_stated_size_hw, files))
            order.sort(key=lambda position: (sizes.index(sizes[position]), position))
        reads = (partial(_read_image, files[position]) for position in order)
        with closing(load_ahead(reads, self._decoding, self._fall_back)) as loaded:
            for position, image in zip(order, loaded, strict=True):
                self.frames_seen += 1
                if isinstance(image, _StoreError):
                    raise image
                if isinstance(image, InputError):
                    self.bad_frames.append((position, str(image)))
                else:
                    path = files[position].path
                    yield Frame(position, None, image, path, path)


class _StoreError(SourceError):
    """An object can't be read from its store, which may be transient: retry the segment."""


def _read_image(file: SourceFile) -> Encoded:
    """Read an image's file or object; raises SourceError, of a store _StoreError, if it can't be read."""
    if not storage.is_remote(file.path):
        return read_encoded(file.path, "image")
    limits.check("image_bytes", file.size, f"{file.path!r} has", SourceError)
    try:
        return Encoded(_read_object(file), repr(file.path))
    except SourceError as error:
        raise _StoreError(str(error)) from error


def _read_object(file: SourceFile, most: int = -1) -> bytes:
    with translate_errors(SourceError, f"source must be readable, {file.path!r} is not"):
        system, path = storage.resolve(file.path)
        with system.open(path, "rb") as stream:
            data: bytes = stream.read(most)
            return data


def _stated_size_hw(file: SourceFile) -> tuple[int, int] | None:
    """(height, width) from an image's header; None if it states none or can't be read."""
    try:
        return stated_size_hw(_read_object(file, _HEAD_BYTES))
    except SourceError:
        return None  # decoding it gives the reason
