"""What all slots of an engine share: the network, the constants, and which implementation serves which step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from maskjet import ops
from maskjet.config import EngineConfig, Step
from maskjet.detections import Detections
from maskjet.engine.compilation import Compiler
from maskjet.engine.copying import Copier
from maskjet.networks.rfdetr import RFDETR
from maskjet.ops.selection import FoundRows


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


class Steps:
    """The network on its device, and what goes before and after it.

    Args:
        network: In eval mode, float32; moved and converted to what the config says.
        config: The choices; its device must be resolvable here.
        postprocessing: Thresholds and class map, on the CPU.
    """

    def __init__(self, network: RFDETR, config: EngineConfig, postprocessing: Postprocessing) -> None:
        self.config = config
        self.spec = network.spec
        self.device = config.resolve_device()
        self.precision, self.dtype = config.resolve_precision(self.device)
        self.thresholds = postprocessing.thresholds.to(self.device)
        self.class_map = postprocessing.class_map.to(self.device)
        self.choices, self.devices = self._choose()
        self.copier = Copier()
        self.compiler = Compiler(network.to(self.device).cast(self.dtype), config.compile)

    def _choose(self) -> tuple[Mapping[str, ops.Choice], Mapping[str, torch.device]]:
        """Which implementation serves each step, and where."""
        choices: dict[str, ops.Choice] = {}
        devices: dict[str, torch.device] = {}
        steps: tuple[Step, ...] = ("preprocess", "select", "encode_masks")
        for step in steps[: 3 if self.spec.has_masks else 2]:
            asked = self.config.implementation_of(step)
            devices[step] = torch.device("cpu") if asked == "cpu" else self.device
            dtype = torch.uint8 if step == "preprocess" else torch.float32
            choices[step] = ops.RECORDS[step].choose(asked, torch.empty(0, dtype=dtype, device=devices[step]))
        return choices, devices

    def mark(self, what: str) -> AbstractContextManager[Any]:
        """A context that is an NVTX range, where those were asked for."""
        return torch.cuda.nvtx.range(what) if self.config.nvtx else nullcontext()

    def preprocess(self, frames: torch.Tensor, inputs: torch.Tensor) -> None:
        """Frames uint8 [B, H, W, 3] to the network's inputs [B, 3, S, S], on one device."""
        side = self.spec.input_size
        ops.preprocess(
            frames,
            inputs,
            size=(side, side),
            mean=self.spec.mean,
            std=self.spec.std,
            resample=self.config.resample,
            implementation=self.choices["preprocess"].name,  # type: ignore[arg-type]
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
