"""The loop that `predict` and `stream` share: keeps a batch in flight in each of its slots.

Everything except decoding happens in the thread that iterates. It submits decoded frames until every slot is busy,
waits for the oldest batch, submits again and yields the results. Meanwhile the device works on the next batches.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from maskjet.detections import Detections
from maskjet.engine.engine import Engine
from maskjet.engine.reading import Readers
from maskjet.engine.slot import Pixels, Slot
from maskjet.errors import MaskjetError, UnsupportedError, device_error
from maskjet.postprocessing import Postprocessing
from maskjet.sources.decoding import choose_decoding
from maskjet.sources.frames import Frame
from maskjet.sources.images import Image
from maskjet.sources.picture import Picture

if TYPE_CHECKING:
    from maskjet.engine.deadlines import Deadlines
    from maskjet.propagation.schedule import Propagation

Finish = Callable[[Any, Any], Iterable[tuple[Any, Detections]]]
"""Turns an item and its detections into results: none while other tiles of the frame are missing. Of an item that was
not detected on, its detections are None."""
_AHEAD_OF_MOVING = 12  # frames of a source that wait while one is detected: 0.4 s of a camera
_AHEAD = 4  # batches' worth of images that `predict` holds, until a batch of one kind is full


@dataclass
class Batch:
    """A batch on its way through the loop."""

    name: Callable[[], str]
    """Makes the name of the batch, for errors and NVTX ranges."""
    index: int
    """Number of the first image, for errors."""
    items: Sequence[Any]
    """One per image, yielded with its detections."""
    images: Sequence[Pixels]
    """The frames, of one layout and with inputs of one size (`Steps.input_hw`); none if nothing is to be detected."""
    size: int
    """Batch size of the network, at least the number of images."""
    slot: Slot | None = None
    """The slot that the batch was submitted to."""
    taken_s: float = field(default_factory=time.monotonic)
    """When its images were taken."""
    error: Exception | None = None
    """Why the batch could not start; raised once the batches before it have been yielded."""

    def __str__(self) -> str:
        return self.name()


@dataclass(frozen=True)
class Feed:
    """The source of the loop's batches."""

    take: Callable[..., Batch | None]
    """The next batch; None if there is none. With `waits` it waits for an image. With `fills` it is None until a batch
    is full or no more images can come: the device is busy, and a part of a batch takes it as long as a full one."""
    close: Callable[[], None]
    """Stops reading."""
    check: Callable[[], None] = lambda: None
    """Raises the error of a source that failed; called when all batches have been taken."""
    dropped: Callable[[], int] = lambda: 0
    """Frames dropped so far."""
    done: Callable[[Sequence[Any], float], None] = lambda *_: None
    """Called with the items whose results are handed over now, and when their batch was taken."""
    all_cores: bool = False
    """Whether slots may keep cores busy, because nothing is being decoded; see `GraphSlot.submit`."""


def run(
    engine: Engine,
    open_feed: Callable[[], Feed],
    depth: int,
    postprocessing: Postprocessing | None = None,
    finish: Finish | None = None,
) -> Generator[tuple[Any, Detections]]:
    """Detect on the images of a feed, which is opened once the slots are lent, with up to `depth` batches in flight.

    `finish` is called in the order of the feed, while the device works on the next batch; None reports what was found.

    Yields:
        Each item with its detections, in the order of the feed, or whatever `finish` makes of them.

    Raises:
        DeviceError: The device failed on a batch; the batches before it were yielded.
        Exception: Any error of `Feed.take`, `Feed.check` and `finish`.
    """
    in_flight: deque[Batch] = deque()
    with engine.lease(depth, postprocessing) as slots, closing(open_feed()) as feed:
        idle = list(slots)
        try:
            while True:
                _submit(engine, feed, idle, in_flight, waits=not in_flight)
                if not in_flight:
                    feed.check()
                    return
                batch = in_flight.popleft()
                if batch.error is not None:
                    raise batch.error
                found: Sequence[Detections | None] = [None] * len(batch.items)
                if batch.slot is not None:
                    try:
                        with engine.steps.mark("result {}", batch):
                            found = batch.slot.result()
                    except MaskjetError:
                        raise
                    except RuntimeError as error:
                        raise device_error(batch, batch.index, error) from error
                    idle.append(batch.slot)
                    _submit(engine, feed, idle, in_flight, waits=False)
                results: list[tuple[Any, Any]] = list(zip(batch.items, found, strict=True))
                if finish is not None:
                    results = [result for each in results for result in finish(*each)]
                engine.note(images=len(results), detections=sum(len(each.class_id) for _, each in results))
                feed.done([item for item, _ in results], batch.taken_s)
                yield from results
        finally:
            engine.note(dropped=feed.dropped())


def _submit(engine: Engine, feed: Feed, idle: list[Slot], in_flight: deque[Batch], *, waits: bool) -> None:
    """Start batches while there are idle slots and images; `waits`: wait for the first image."""
    while idle and not (in_flight and in_flight[-1].error):
        batch = feed.take(waits=waits, fills=bool(in_flight))
        waits = False
        if batch is None:
            return
        in_flight.append(batch)
        if not batch.images:
            continue
        if engine.refusal is not None:  # raised when the batches before it have been yielded
            batch.error = UnsupportedError(engine.refusal)
            return
        batch.slot = idle.pop()
        try:
            with engine.steps.mark("submit {}", batch):
                batch.slot.submit(batch.images, batch.size, all_cores=feed.all_cores)
        except Exception as error:
            is_device = isinstance(error, RuntimeError) and not isinstance(error, MaskjetError)
            batch.error = device_error(batch, batch.index, error) if is_device else error


def _kinds(engine: Engine) -> Callable[[tuple[int, int]], Hashable]:
    """Key by which frames may share a batch: a function of (height, width).

    On a CPU eight frames in a batch take a third longer than one by one (demo, two cores), so sizes stay apart.
    """
    return engine.steps.input_hw if engine.steps.device.type == "cuda" else tuple


def _name_of(frames: Sequence[Frame]) -> str:
    """The name of a batch of frames."""
    first, more = frames[0], len(frames) - 1
    return f"frame {first.index} of {first.source!r}" + (f" or the {more} frames with it" if more else "")


def pixels_of(frame: Frame) -> Pixels:
    """The pixels of a frame as slots take them, without a copy if possible."""
    pixels = frame.pixels
    return pixels if isinstance(pixels, torch.Tensor | Picture) else tensor_of(frame.image)


def tensor_of(pixels: Image | torch.Tensor) -> torch.Tensor:
    """An image as a tensor, which shares its memory if that may be written to."""
    if isinstance(pixels, torch.Tensor):
        return pixels
    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy())


def _padded(count: int, most: int) -> int:
    """The batch size for so many frames: a power of two or `most`."""
    return min(1 << (count - 1).bit_length(), most)


def _batch_of(frames: Sequence[Frame], most: int) -> Batch:
    """A batch of images, whose size is a power of two or `most`."""
    numbers = [frame.index for frame in frames]
    size = _padded(len(frames), most)
    return Batch(partial("images{}".format, numbers), numbers[0], frames, list(map(pixels_of, frames)), size)


def _gather(kind_of: Callable[[tuple[int, int]], Hashable], frames: Iterable[Frame], most: int) -> Generator[Batch]:
    """Batches of images, each of one kind and of at most `most`; a smaller one is padded to a power of two."""
    waiting: dict[Hashable, list[Frame]] = {}  # images of each kind
    for frame in frames:
        kind = kind_of(frame.size_hw)
        waiting.setdefault(kind, []).append(frame)
        if len(waiting[kind]) == most:
            yield _batch_of(waiting.pop(kind), most)
        elif sum(map(len, waiting.values())) == _AHEAD * most:
            yield _batch_of(waiting.pop(max(waiting, key=lambda kind: len(waiting[kind]))), most)
    for left in waiting.values():
        yield _batch_of(left, most)


def stream(
    engine: Engine,
    sources: Sequence[Any],
    *,
    depth: int,
    batch: int,
    drops_late: bool = False,
    deadlines: Deadlines | None = None,
    whole_batches: bool = False,
    stop: threading.Event | None = None,
    postprocessing: Postprocessing | None = None,
    cut: Callable[[Frame], Sequence[Frame]] | None = None,
    finish: Finish | None = None,
    propagation: Propagation | None = None,
) -> Generator[tuple[Frame, Detections]]:
    """Detect on the frames of sources, side by side, with up to `depth` batches of `batch` frames in flight.

    Sources are arguments of `open_source`; a `stop` that is set ends the stream. A `propagation` chooses the frames to
    detect on, and has the `cut` and `finish` of their tiles. Other arguments are those of `Readers` and `run`.

    Yields:
        Each frame with its detections, the frames of a source in order.

    Raises:
        DeviceError: The device failed on a frame; the frames before it were yielded.
        Exception: The error of a source that failed, once all sources have ended.
    """
    room = 1 if drops_late else math.ceil(depth * batch / len(sources))
    if whole_batches:
        room = max(room, 2 * batch)
    if propagation is not None:
        room, cut, finish = max(room, _AHEAD_OF_MOVING), propagation.shrink, propagation.finish
    decoding = choose_decoding(engine.steps.config, len(sources))
    size_kind = _kinds(engine)

    def kind_of(frame: Frame) -> Hashable:
        return isinstance(frame.pixels, Picture), size_kind(frame.size_hw)

    def open_feed() -> Feed:
        readers = Readers(
            sources,
            room,
            kind_of=kind_of,
            decoding=decoding,
            on_fallback=engine.note_decoding,
            cut=cut,
            keeps_yuv=propagation is not None,
            drops_late=drops_late,
            deadlines=deadlines,
            whole_batches=whole_batches,
            stop=stop,
        )

        def take(*, waits: bool, fills: bool) -> Batch | None:
            size, is_detected = batch, True
            if propagation is None:
                frames = readers.take(batch, waits=waits, fills=fills)
            else:
                frames, is_detected = propagation.take(readers.take, batch, kind_of, waits=waits, fills=fills)
                size = _padded(len(frames), batch)
            if not frames:
                return None
            images = [pixels_of(frame) for frame in frames] if is_detected else []
            return Batch(partial(_name_of, frames), frames[0].index, frames, images, size)

        return Feed(take, readers.close, readers.check, lambda: readers.dropped, readers.done)

    return run(engine, open_feed, depth, postprocessing, finish)


def predict(
    engine: Engine,
    load: Callable[[int], torch.Tensor],
    count: int,
    postprocessing: Postprocessing | None = None,
    *,
    all_cores: bool = True,
    cut: Callable[[Frame], Sequence[Frame]] | None = None,
    finish: Finish | None = None,
) -> list[Detections]:
    """Detect on images of any sizes, on any device; returns the detections of each image.

    `load` gives an image by number, uint8 [H, W, 3] RGB; it is called in order, each time when a batch is due. With
    `all_cores` slots may keep cores busy, because no image is decoded ahead. `cut` makes several frames of an image's,
    of which `finish` makes one again.

    Raises:
        DeviceError: The device failed; its `index` is the number of an image in the batch.
        UnsupportedError: The engine is closed, or no slot is free in time.
        Exception: Any error of `load`.
    """
    if not count:
        return []
    frames: Iterable[Frame] = (
        Frame(number, None, load(number), "images", f"images[{number}]") for number in range(count)
    )
    most = engine.steps.config.batch
    if cut is not None:
        most = most if engine.steps.device.type == "cuda" else 1  # see `_kinds`
        frames = chain.from_iterable(map(cut, frames))

    def open_feed() -> Feed:
        batches = _gather(_kinds(engine), frames, most)
        return Feed(lambda **_: next(batches, None), batches.close, all_cores=all_cores)

    results = run(engine, open_feed, 1 if cut is None else 2, postprocessing, finish)
    found = {frame.index: each for frame, each in results}
    return [found[number] for number in range(count)]
