"""Variants: ways from the same image and the same weights to detections, and what each is called."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.video_peers import ORACLE, PEERS
from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.media.frames import Frame, Source
from maskjet.model import Model
from maskjet.networks.rfdetr import RFDETR
from maskjet.parity import OURS, THRESHOLD
from maskjet.parity.machine import describe_machine

_PEERS = {**PEERS, ORACLE.name: ORACLE}
PROGRAMS = (OURS, *_PEERS)


@dataclass(frozen=True)
class Variant:
    """How detections are made; the weights are given to `run`."""

    name: str
    """For tables."""
    config: EngineConfig = field(default_factory=EngineConfig)
    """Of maskjet; of a peer only the device counts."""
    depth: int = 1
    """Batches in flight."""
    batch: int = 1
    """Most images that the network sees at once."""
    threshold: float = THRESHOLD
    """What a confidence must exceed, 0..1."""
    program: str = OURS
    """Whose pipeline: "maskjet" or one of `bench.video_peers`."""

    def __post_init__(self) -> None:
        if self.program not in PROGRAMS:
            raise InputError(f"program must be one of {PROGRAMS}, got {self.program!r}.")
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
        if self.program != OURS:
            build = _PEERS[self.program].build
            detect = build(network.state_dict(), network.spec, self.config.resolve_device(), self.threshold)
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
