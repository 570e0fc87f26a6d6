"""What all slots of an engine share, whichever network it is: the device, the choices, and what is made of results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet import ops
from maskjet.config import EngineConfig, Step
from maskjet.detections import Detections
from maskjet.engine.compilation import Compiler
from maskjet.engine.copying import Copier
from maskjet.ops.selection import FoundRows
from maskjet.spec import ModelSpec, TwoStageSpec


@dataclass(frozen=True)
class Postprocessing:
    """What makes detections of a network's output; per class of its class head."""

    thresholds: torch.Tensor
    """float32 [C]: what a score must exceed."""
    class_map: torch.Tensor
    """int32 [C]: the class id to report, -1 to drop."""


class Slot(Protocol):
    """A place for one batch at a time on its way from frames to detections."""

    def submit(self, images: Sequence[torch.Tensor], batch: int, *, all_cores: bool = False) -> None:
        """Take a batch; returns before it is done.

        Args:
            images: uint8 [H, W, 3] RGB, all of one size and device, at least one; not needed any more on return, but
                for those on a GPU.
            batch: How many the network is to see at once, at least as many.
            all_cores: As for `Copier.copy`.
        """

    def result(self) -> list[Detections]:
        """Wait for the batch that was taken last: its detections, one per image."""

    def drain(self) -> None:
        """Wait, a bounded time, until nothing is being done any more."""


class Work(Protocol):
    """The steps of one kind of batch on a GPU, in buffers of their own."""

    results: torch.Tensor
    """uint8: what `run` leaves to be copied to the host."""

    def run(self, frames: torch.Tensor) -> None:
        """Work on uint8 [B, H, W, 3] on the current stream; never waits, and can be captured in a CUDA graph."""

    def read(self, results: NDArray[np.uint8], images: int) -> list[Detections]:
        """The detections of the first images of the batch, from a copy of `results`; the batch must be done."""


class Steps(ABC):
    """A network on its device, and what goes before and after it.

    Args:
        spec: Of the network.
        config: The choices; its device must be resolvable here.
        named: The steps that the config may choose implementations for, each with the type of its first tensor.
    """

    compiler: Compiler
    """The network."""

    def __init__(self, spec: ModelSpec | TwoStageSpec, config: EngineConfig, named: Mapping[Step, torch.dtype]) -> None:
        self.spec, self.config = spec, config
        self.device = config.resolve_device()
        self.precision, self.dtype = config.resolve_precision(self.device)
        self.choices: dict[str, ops.Choice] = {}
        """Which implementation serves each step."""
        self.devices: dict[str, torch.device] = {}
        """Where it does so."""
        for step, dtype in named.items():
            asked = config.implementation_of(step)
            self.devices[step] = torch.device("cpu") if asked == "cpu" else self.device
            sample = torch.empty(0, dtype=dtype, device=self.devices[step])
            self.choices[step] = ops.RECORDS[step].choose(asked, sample)
        self.copier = Copier()

    @abstractmethod
    def prepare(self, batch: int) -> None:
        """Do now what the first batch of this size would have to wait for."""

    @abstractmethod
    def detect(self, images: Sequence[torch.Tensor]) -> list[Detections]:
        """Run the steps one after the other on uint8 [H, W, 3] of one size, anywhere."""

    @abstractmethod
    def work(self, batch: int, size_hw: tuple[int, int]) -> Work:
        """Buffers on the GPU for batches of frames of a size, and what works on them."""

    def mark(self, what: str) -> AbstractContextManager[Any]:
        """A context that is an NVTX range, where those were asked for."""
        return torch.cuda.nvtx.range(what) if self.config.nvtx else nullcontext()

    def preprocess(self, frames: torch.Tensor, inputs: torch.Tensor) -> None:
        """Frames uint8 [B, H, W, 3] to what the network sees of them [B, 3, h, w], on one device."""
        height, width = inputs.shape[2:]
        ops.preprocess(
            frames,
            inputs,
            size=(height, width),
            mean=self.spec.mean,
            std=self.spec.std,
            resample=self.config.resample,
            implementation=self.choices["preprocess"].name,  # type: ignore[arg-type]
        )

    def preprocess_each(self, images: Sequence[torch.Tensor], inputs: torch.Tensor) -> None:
        """Images uint8 [H, W, 3], anywhere, to what the network sees of them [B, 3, h, w], on its device."""
        where = self.devices["preprocess"]
        with self.mark("preprocess"):
            for image, one in zip(images, inputs, strict=True):
                made = one if one.device == where else torch.empty_like(one, device=where)
                self.preprocess(image.to(where, non_blocking=True)[None], made[None])
                if made is not one:
                    one.copy_(made)

    def encode_masks(
        self,
        mask_logits: torch.Tensor | None,
        selection: ops.Selection,
        sizes: Sequence[tuple[int, int]],
        boxes: torch.Tensor | None = None,
    ) -> list[list[bytes]] | None:
        """The masks of a selection, as `ops.encode_masks` makes them; None where there are no logits."""
        if mask_logits is None:
            return None
        where = self.devices["encode_masks"]
        with self.mark("encode_masks"):
            return ops.encode_masks(
                mask_logits.to(where),
                selection,
                sizes,
                boxes=boxes,
                implementation=self.choices["encode_masks"].name,  # type: ignore[arg-type]
            )

    def detections(
        self, found: FoundRows, strings: list[list[bytes]] | None, sizes: Sequence[tuple[int, int]]
    ) -> list[Detections]:
        """What is returned for images of these sizes.

        Args:
            found: Copied.
            strings: Per image the masks; None from a network without them.
            sizes: (height, width) per image; more may have been looked at.
        """
        return [
            Detections(
                image_size=size,
                xyxy=found.xyxy[image, :count].copy(),
                confidence=found.confidence[image, :count].copy(),
                class_id=found.class_id[image, :count].copy(),
                rle=None if strings is None else [{"size": [*size], "counts": text} for text in strings[image]],
                class_names=self.spec.class_names,
            )
            for image, (size, count) in enumerate(zip(sizes, found.counts, strict=False))
        ]
