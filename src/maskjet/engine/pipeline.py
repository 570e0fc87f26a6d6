"""The loop that `predict` and `stream` share: batches through the slots, as many at once as there are slots.

All of it happens in the thread that iterates, but for decoding: it submits what has been decoded until every slot is
busy, waits for the batch submitted first, submits again and hands the results over. While the caller works on them,
the device works on the next ones.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from maskjet.detections import Detections
from maskjet.engine.engine import Engine
from maskjet.engine.reading import Readers
from maskjet.engine.slot import Slot
from maskjet.errors import DeviceError, MaskjetError, UnsupportedError, first_line
from maskjet.media.frames import Frame


@dataclass
class Batch:
    """Images that go through the network together."""

    name: str
    """Names the batch in errors and marks."""
    index: int
    """Number of the first image, for errors."""
    items: Sequence[Any]
    """One per image, to be handed over with its detections."""
    images: Sequence[torch.Tensor]
    """uint8 [H, W, 3] RGB, all of one size and device."""
    size: int
    """Images that the network is to see at once, at least as many."""
    slot: Slot | None = None
    """The slot that it was submitted to."""
    error: Exception | None = None
    """The error that kept it from starting, to be raised in its turn."""


class Feed(Protocol):
    """Gives the loop its batches."""

    all_cores: bool
    """Whether copying may take all cores, because nothing is being decoded."""

    @property
    def dropped(self) -> int:
        """Frames dropped so far."""

    def take(self, *, waits: bool) -> Batch | None:
        """The next batch; None where there is none, after waiting for one if `waits`."""

    def check(self) -> None:
        """Raise whatever broke a source, when all batches have been taken."""

    def close(self) -> None:
        """Read no more."""


def run(engine: Engine, open_feed: Callable[[], Feed], depth: int) -> Generator[tuple[Any, Detections]]:
    """Detect on the images of a feed.

    Args:
        engine: Lends the slots.
        open_feed: Opens the feed, once there are slots.
        depth: Batches in flight, at least 1.

    Yields:
        Each item with its detections, batch after batch as the feed gave them.

    Raises:
        DeviceError: The device failed on a batch; those before it were handed over.
        Exception: Whatever `Feed.take` and `Feed.check` raise.
    """
    flying: deque[Batch] = deque()
    with engine.lease(depth) as slots, closing(open_feed()) as feed:
        idle = list(slots)
        try:
            while True:
                _submit(engine, feed, idle, flying, waits=not flying)
                if not flying:
                    feed.check()
                    return
                batch = flying.popleft()
                if batch.error is not None:
                    raise batch.error
                assert batch.slot is not None
                try:
                    with engine.steps.mark(f"result {batch.name}"):
                        found = batch.slot.result()
                except MaskjetError:
                    raise
                except RuntimeError as error:
                    raise _failure(batch, error) from error
                with engine.counting:
                    engine.done.update(images=len(found), detections=sum(len(each.class_id) for each in found))
                idle.append(batch.slot)
                _submit(engine, feed, idle, flying, waits=False)
                yield from zip(batch.items, found, strict=True)
        finally:
            with engine.counting:
                engine.done.update(dropped=feed.dropped)


def _submit(engine: Engine, feed: Feed, idle: list[Slot], flying: deque[Batch], *, waits: bool) -> None:
    """Start batches while there are slots and images; wait for the first image if nothing else is to be done."""
    while idle and not (flying and flying[-1].error):
        batch = feed.take(waits=waits)
        waits = False
        if batch is None:
            return
        flying.append(batch)
        if engine.refusal is not None:  # raised when the batches before it have been handed over
            batch.error = UnsupportedError(engine.refusal)
            return
        batch.slot = idle.pop()
        try:
            with engine.steps.mark(f"submit {batch.name}"):
                batch.slot.submit(batch.images, batch.size, all_cores=feed.all_cores)
        except Exception as error:
            is_device = isinstance(error, RuntimeError) and not isinstance(error, MaskjetError)
            batch.error = _failure(batch, error) if is_device else error


def _failure(batch: Batch, error: Exception) -> DeviceError:
    """An error that names the batch on which a device failed."""
    failure = DeviceError(f"The device failed on {batch.name}: {first_line(error)}", index=batch.index)
    failure.__cause__ = error
    return failure


class _Frames:
    """The frames of sources, side by side, batches of one size.

    Args:
        sources: Whatever `open_source` takes.
        depth: Batches in flight.
        batch: Most frames of a batch.
        drops_late: As for `Readers`.
        stop: As for `Readers`.
    """

    all_cores = False

    def __init__(
        self, sources: Sequence[Any], depth: int, batch: int, *, drops_late: bool, stop: threading.Event | None
    ) -> None:
        room = 1 if drops_late else math.ceil(depth * batch / len(sources))
        self._readers = Readers(sources, room, drops_late=drops_late, stop=stop)
        self._batch = batch
        self.check, self.close = self._readers.check, self._readers.close

    @property
    def dropped(self) -> int:
        """Frames dropped so far."""
        return self._readers.dropped

    def take(self, *, waits: bool) -> Batch | None:
        """The next frames of one size; see `Feed`."""
        frames = self._readers.take(self._batch, waits=waits)
        if not frames:
            return None
        first, more = frames[0], len(frames) - 1
        name = f"frame {first.index} of {first.source!r}" + (f" or the {more} frames with it" if more else "")
        arrays = [frame.image if frame.image.flags.writeable else frame.image.copy() for frame in frames]
        return Batch(name, first.index, frames, [torch.from_numpy(array) for array in arrays], self._batch)


class _Images:
    """The images of one call of `predict`, batches of one size; each is loaded when its turn comes.

    Args:
        load: Loads the image of a number, uint8 [H, W, 3] RGB.
        count: How many images there are.
        most: Most images of a batch, which is padded to a power of two up to that.
    """

    all_cores = True
    dropped = 0

    def __init__(self, load: Callable[[int], torch.Tensor], count: int, most: int) -> None:
        self._batches = self._make_batches(load, count, most)
        self.close = self._batches.close

    def _make_batches(self, load: Callable[[int], torch.Tensor], count: int, most: int) -> Generator[Batch]:
        for start in range(0, count, most):
            images = {number: load(number) for number in range(start, min(start + most, count))}
            for numbers in _alike(images):
                size = min(1 << (len(numbers) - 1).bit_length(), most)
                yield Batch(f"images{numbers}", numbers[0], numbers, [images[number] for number in numbers], size)

    def take(self, *, waits: bool) -> Batch | None:  # noqa: ARG002
        """The next images of one size; see `Feed`."""
        return next(self._batches, None)

    def check(self) -> None:
        """Nothing can have broken: errors are raised by `take`."""


def _alike(images: dict[int, torch.Tensor]) -> Iterator[list[int]]:
    """Numbers of images that can go together: of one size, on one device."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, image in images.items():
        alike.setdefault((image.shape, image.device), []).append(number)
    yield from alike.values()


def stream(
    engine: Engine,
    sources: Sequence[Any],
    *,
    depth: int,
    batch: int,
    drops_late: bool = False,
    stop: threading.Event | None = None,
) -> Generator[tuple[Frame, Detections]]:
    """Detect on the frames of sources, side by side.

    Args:
        engine: Lends the slots.
        sources: Whatever `open_source` takes.
        depth: Batches in flight, at least 1.
        batch: Most frames of a batch, which are all of one size.
        drops_late: As for `Readers`.
        stop: As for `Readers`.

    Yields:
        Each frame with its detections; those of a source in their order.

    Raises:
        DeviceError: The device failed on a frame; those before it were handed over.
        Exception: Whatever broke a source, when all have ended.
    """
    return run(engine, lambda: _Frames(sources, depth, batch, drops_late=drops_late, stop=stop), depth)


def predict(engine: Engine, load: Callable[[int], torch.Tensor], count: int) -> list[Detections]:
    """Detect on images of any sizes, on any device.

    Args:
        engine: Lends the slot.
        load: Loads the image of a number, uint8 [H, W, 3] RGB; called when its turn comes.
        count: How many images there are.

    Returns:
        The detections of each image.

    Raises:
        DeviceError: The device failed; carries the number of an image it worked on.
        UnsupportedError: As for `Engine.lease`.
        Exception: Whatever `load` raises.
    """
    found = dict(run(engine, lambda: _Images(load, count, engine.steps.config.batch), depth=1)) if count else {}
    return [found[number] for number in range(count)]
