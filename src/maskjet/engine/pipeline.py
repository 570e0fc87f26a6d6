"""The pipeline: frames of one source or several through the slots, as many at once as there are slots.

All of it happens in the thread that iterates, but for decoding: it submits what has been decoded until every slot is
busy, waits for the batch submitted first, submits again and hands the results over. While the caller works on them,
the device works on the next ones.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from maskjet.detections import Detections
from maskjet.engine.engine import Engine, reporting_failures
from maskjet.engine.reading import Readers
from maskjet.engine.steps import Slot
from maskjet.media.frames import Frame


@dataclass
class _Flight:
    """A batch on its way."""

    slot: Slot
    """Where it is."""
    frames: Sequence[Frame]
    """What it is of; its results go with them."""
    error: Exception | None = None
    """What kept it from starting; raised in its turn."""


def run(
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
        engine: What to run them on.
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
    flying: deque[_Flight] = deque()
    room = 1 if drops_late else math.ceil(depth * batch / len(sources))
    with (
        engine.lease(depth) as slots,
        closing(Readers(sources, room, drops_late=drops_late, stop=stop)) as readers,
    ):
        idle = list(slots)
        try:
            while True:
                _submit(engine, readers, idle, flying, batch, waits=not flying)
                if not flying:
                    readers.check()
                    return
                flight = flying.popleft()
                found = _finish(engine, flight)
                engine.count(found)
                idle.append(flight.slot)
                _submit(engine, readers, idle, flying, batch, waits=False)
                yield from zip(flight.frames, found, strict=True)
        finally:
            engine.count((), dropped=readers.dropped)


def _submit(
    engine: Engine, readers: Readers, idle: list[Slot], flying: deque[_Flight], batch: int, *, waits: bool
) -> None:
    """Start batches while there are slots and frames; wait for the first frame if nothing else is to be done."""
    while idle and not (flying and flying[-1].error):
        frames = readers.take(batch, waits=waits)
        waits = False
        if not frames:
            return
        flight = _Flight(idle.pop(), frames)
        flying.append(flight)
        try:
            engine.check()
            with _working(engine, "submit", flight):
                flight.slot.submit([to_tensor(frame.image) for frame in frames], batch)
        except Exception as error:  # raised when those before it have been handed over
            flight.error = error


def _finish(engine: Engine, flight: _Flight) -> list[Detections]:
    if flight.error is not None:
        raise flight.error
    with _working(engine, "result", flight):
        return flight.slot.result()


@contextmanager
def _working(engine: Engine, what: str, flight: _Flight) -> Iterator[None]:
    """Name a batch in errors and marks while something is done with it."""
    first, more = flight.frames[0], len(flight.frames) - 1
    name = f"frame {first.index} of {first.source!r}" + (f" or the {more} frames with it" if more else "")
    with reporting_failures(name, first.index), engine.steps.mark(f"{what} {name}"):
        yield


def to_tensor(image: Any) -> torch.Tensor:
    """An array as a tensor; shares its memory where that can be written to."""
    return torch.from_numpy(image if image.flags.writeable else image.copy())
