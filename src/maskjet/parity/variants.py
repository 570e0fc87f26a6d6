"""Variants: detector configurations to compare, with the same weights and images."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.model import Model
from maskjet.networks.exported.network_file import NetworkFile
from maskjet.networks.rfdetr import RFDETR
from maskjet.parity import THRESHOLD
from maskjet.sources.frames import Frame, Source


@dataclass(frozen=True)
class DetectorVariant:
    """A configuration of maskjet, to run with given weights; variants of other programs are subclasses."""

    name: str
    """Name of the variant in tables."""
    config: EngineConfig = field(default_factory=EngineConfig)
    """Settings of the engine."""
    depth: int = 1
    """Number of batches in flight."""
    batch: int = 1
    """Largest batch, in images."""
    threshold: float = THRESHOLD
    """Confidence that a detection must exceed, 0..1."""
    program = "maskjet"
    """Name of the program."""

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise InputError(f"threshold must be 0 or more and below 1, got {self.threshold}.")

    def identify(self, network: RFDETR | NetworkFile) -> dict[str, Any]:
        """Everything that determines the detections on one kind of machine, as JSON types."""
        device = self.config.resolve_device()
        if isinstance(network, NetworkFile):
            weights, precision = network.digest(), str(network.precision)
        else:
            weights, precision = _digest(network), self.config.resolve_precision(device)
        return {
            "name": self.name,
            "program": self.program,
            "model": network.spec.name,
            "weights": weights,
            "config": asdict(self.config) | {"device": str(device), "precision": precision},
            "depth": self.depth,
            "batch": self.batch,
            "threshold": self.threshold,
        }

    def run(self, network: RFDETR | NetworkFile, source: Source) -> Iterator[tuple[Frame, Detections]]:
        """Detect on the frames of a source with a copy of a network in eval mode, float32, on the CPU.

        Raises UnsupportedError if the variant can't run on this machine.
        """
        with (
            Model(copy.deepcopy(network), self.config, threshold=self.threshold) as model,
            closing(model.stream(source, depth=self.depth, batch=self.batch)) as results,
        ):
            yield from results


def _digest(network: RFDETR) -> str:
    """SHA-256 of the weights and their names, shortened to 16 hexadecimal digits."""
    found = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
