"""Images in a model's queue, their options and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from maskjet.tiling.layout import UNCUT, Tiling

if TYPE_CHECKING:
    import torch

    from maskjet.detections import Detections
    from maskjet.sources.plain_jpegs import PlainJPEG

Image = NDArray[np.uint8]
"""uint8 [H, W, 3], RGB."""


@dataclass(frozen=True)
class WholeJPEG:
    """A JPEG that was found whole, and that the GPU decodes with the others of its batch."""

    plain: PlainJPEG
    """The file."""
    decode: Callable[[], Image]
    """Decodes it on the CPU instead."""


@dataclass(frozen=True)
class Options:
    """Options of `Model.predict` that a request gives; images of equal options share batches. None: the model's own."""

    threshold: float | tuple[tuple[str, float], ...] | None = None
    """A confidence must exceed it: one for all classes, or pairs of class name and threshold."""
    classes: tuple[str, ...] | None = None
    """Names of the classes to report."""
    max_detections: int | None = None
    """Most detections per image."""
    tiling: Tiling = UNCUT
    """How images are cut into tiles."""
    weak: bool = False
    """Whether detections for a tracker come, too, behind those that exceed the threshold."""

    def arguments(self) -> dict[str, Any]:
        """Arguments of `Model.predict`."""
        threshold: Any = dict(self.threshold) if isinstance(self.threshold, tuple) else self.threshold
        fields = {"threshold": threshold, "classes": self.classes, "max_detections": self.max_detections}
        return fields | vars(self.tiling) | ({"weak": True} if self.weak else {})


@dataclass(frozen=True)
class Answer:
    """The detections of one image, and how long they took."""

    detections: Detections
    image: Image | torch.Tensor
    """The image that they were found in, on the GPU if it was decoded there."""
    decode_s: float
    """Seconds that decoding it took, with others if the GPU did; 0 for one that came decoded."""
    queue_s: float
    """Seconds from decoded until its batch began."""
    predict_s: float
    """Seconds that its batch took."""
    batch: int
    """Images in its batch."""


@dataclass(slots=True, eq=False)
class Ticket:
    """An image that is being decoded, waits, or is in a batch."""

    options: Options
    image: Image | WholeJPEG | torch.Tensor | None = None
    decode: Callable[[], Image | WholeJPEG] | None = None
    future: Future[None] | None = None
    arrived: float = 0.0
    decode_s: float = 0.0
    is_gone: bool = False
    answer: asyncio.Future[Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def resolve(tickets: Sequence[Ticket], outcomes: Sequence[Answer | BaseException]) -> None:
    """Set the answers of a model's tickets in its event loop, all in one call; answers that are cancelled stay so."""

    def settle() -> None:
        for ticket, outcome in zip(tickets, outcomes, strict=True):
            if ticket.answer.done():
                continue
            if isinstance(outcome, BaseException):
                ticket.answer.set_exception(_as_exception(outcome))
            else:
                ticket.answer.set_result(outcome)

    with suppress(RuntimeError):  # the loop was closed meanwhile
        tickets[0].answer.get_loop().call_soon_threadsafe(settle)


def _as_exception(error: BaseException) -> Exception:
    """An error that a future accepts: no StopIteration, and none that would end the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    made = RuntimeError(f"{type(error).__name__}: {error}")
    made.__cause__ = error
    return made
