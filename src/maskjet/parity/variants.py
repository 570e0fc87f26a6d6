"""Variants: ways from the same image and the same weights to detections, and what each is called."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.media.frames import Frame, Source
from maskjet.model import Model
from maskjet.networks.rfdetr import RFDETR
from maskjet.parity import OURS, THRESHOLD
from maskjet.parity.machine import describe_machine
from maskjet.spec import ModelSpec

Detect = Callable[[NDArray[np.uint8]], Detections]
"""From a frame, uint8 [H, W, 3], RGB, to its detections, with RLE, which own their memory."""
BuildPipeline = Callable[[Mapping[str, torch.Tensor], ModelSpec, torch.device, float], Detect]
"""From weights (float32, as `RFDETR(spec).state_dict()` gives them; copied), spec, device and threshold to a pipeline.

Raises UnsupportedError where it can't run.
"""


@dataclass(frozen=True)
class Variant:
    """How detections are made; the weights are given to `run`."""

    name: str
    """For tables."""
    config: EngineConfig = field(default_factory=EngineConfig)
    """Of maskjet; another program takes only the device from it."""
    depth: int = 1
    """Batches in flight."""
    batch: int = 1
    """Most images that the network sees at once."""
    threshold: float = THRESHOLD
    """What a confidence must exceed, 0..1."""
    program: str = OURS
    """Whose pipeline: "maskjet", or the name of the program that `build` makes."""
    build: BuildPipeline | None = field(default=None, compare=False, repr=False)
    """Makes another program's pipeline; None for maskjet."""

    def __post_init__(self) -> None:
        if (self.program == OURS) != (self.build is None):
            raise InputError(f"program must be {OURS!r} without build and another with it, got {self.program!r}.")
        if not 0 <= self.threshold < 1:
            raise InputError(f"threshold must be 0 or more and below 1, got {self.threshold}.")

    def identify(self, network: RFDETR) -> dict[str, Any]:
        """Everything that decides its detections, as JSON types: equal for equal runs on one kind of machine."""
        device = self.config.resolve_device()
        return {
            "name": self.name,
            "program": self.program,
            "model": network.spec.name,
            "weights": _digest(network),
            "config": asdict(self.config)
            | {"device": str(device), "precision": self.config.resolve_precision(device)[0]},
            "depth": self.depth,
            "batch": self.batch,
            "threshold": self.threshold,
        }

    def run(self, network: RFDETR, source: Source) -> Iterator[tuple[Frame, Detections]]:
        """Detect on the frames of a source.

        Args:
            network: In eval mode, float32, on the CPU; copied.
            source: Of images.

        Raises:
            UnsupportedError: The variant can't be had here.
        """
        if self.build is not None:
            detect = self.build(network.state_dict(), network.spec, self.config.resolve_device(), self.threshold)
            with source:
                for frame in source:
                    yield frame, detect(frame.image)
            return
        with (
            Model(copy.deepcopy(network), self.config, threshold=self.threshold) as model,
            closing(model.stream(source, depth=self.depth, batch=self.batch)) as results,
        ):
            yield from results


def describe_run() -> dict[str, Any]:
    """Where and with which versions a variant runs, as JSON types."""
    return asdict(describe_machine())


def _digest(network: RFDETR) -> str:
    """SHA-256 of the weights by name, shortened."""
    found = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
