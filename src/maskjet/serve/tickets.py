"""Tickets: images in a model's queue, with options and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maskjet.sources.images import Image
from maskjet.tiling.layout import UNCUT, Tiling

if TYPE_CHECKING:
    import torch

    from maskjet.detections import Detections
    from maskjet.sources.plain_jpegs import PlainJPEG


@dataclass(frozen=True)
class WholeJPEG:
    """A verified JPEG, to be decoded by the GPU with its batch."""

    plain: PlainJPEG
    """The JPEG, checked to be complete."""
    decode: Callable[[], Image]
    """Fallback: decodes the JPEG on the CPU."""

    @property
    def size_hw(self) -> tuple[int, int]:
        """(height, width) of the image in pixels, upright."""
        height, width = self.plain.size_hw
        return (width, height) if self.plain.orientation > 4 else (height, width)


@dataclass(frozen=True)
class LargeImage:
    """An image to be decoded in a thread for large ones."""

    pixels: int
    """Height × width."""
    decode: Callable[[], Image]
    """Decodes it."""


Decode = Callable[[], Image | WholeJPEG | LargeImage]
"""Decodes an image, unless it is to be decoded elsewhere."""


@dataclass(frozen=True)
class Options:
    """`Model.predict` options of a request, None for the model's default; equal options share batches."""

    threshold: float | tuple[tuple[str, float], ...] | None = None
    """Confidence threshold, exclusive: one for all classes, or pairs of class name and threshold."""
    classes: tuple[str, ...] | None = None
    """Names of the classes to report."""
    max_detections: int | None = None
    """Most detections per image."""
    nms: float | None = None
    """Largest intersection over union of two detections, 0..1."""
    tiling: Tiling = UNCUT
    """Tiling of images."""
    weak: bool = False
    """Whether to add weak detections, for a tracker, behind those above the threshold."""

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `Model.predict`."""
        threshold: Any = dict(self.threshold) if isinstance(self.threshold, tuple) else self.threshold
        names = ("classes", "max_detections", "nms", "weak")
        return {"threshold": threshold, **{name: getattr(self, name) for name in names}, **vars(self.tiling)}


@dataclass(frozen=True)
class Answer:
    """Detections of one image, with timings."""

    detections: Detections
    image: Image | torch.Tensor | None
    """uint8 [H, W, 3] RGB: the image, on the GPU if decoded there; None if its memory was released."""
    decode_s: float
    """Decoding time in seconds, of the whole batch on a GPU; 0 for images received decoded."""
    queue_s: float
    """Queueing time in seconds: from decoded to the start of the batch."""
    predict_s: float
    """Inference time of the batch in seconds."""
    batch: int
    """Number of images in the batch."""


@dataclass(slots=True, eq=False)
class Ticket:
    """An image in the queue: being decoded, waiting, or in a batch."""

    options: Options
    cut: list[int]  # numbers of tiles of the request's images that are cut; shared by its tickets
    is_alone: bool = True  # whether it is its request's only image
    release: Callable[[int], None] | None = None  # called with the image's bytes when it was detected on
    tiles: int = 0  # tiles of this image; 0 if it is not cut
    pixels: int = 0  # of a large image
    image: Image | WholeJPEG | torch.Tensor | None = None
    decode: Decode | None = None
    arrived: float = 0.0
    decode_s: float = 0.0
    is_pending: bool = True  # until it is in a batch, or withdrawn
    answer: asyncio.Future[Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def resolve(tickets: Sequence[Ticket], outcomes: Sequence[Answer | Exception]) -> None:
    """Set the answers of tickets in one event loop callback; cancelled answers are skipped."""

    def settle() -> None:
        for ticket, outcome in zip(tickets, outcomes, strict=True):
            if ticket.answer.done():
                continue
            if isinstance(outcome, Exception):
                ticket.answer.set_exception(outcome)
            else:
                ticket.answer.set_result(outcome)

    with suppress(RuntimeError):  # the loop is closed
        tickets[0].answer.get_loop().call_soon_threadsafe(settle)
