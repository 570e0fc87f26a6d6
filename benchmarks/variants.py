"""Variants: detector configurations to compare, with the same weights and images."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.model import Model
from maskjet.networks import Network
from maskjet.networks.state_dict import digest_weights
from maskjet.parity.record import write_record

THRESHOLD = 0.05
"""Default confidence threshold; low, because COCO's metrics need uncertain detections as well."""
Images = Sequence[tuple[str, NDArray[np.uint8]]]
"""Names and images, uint8 [H, W, 3] RGB."""


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

    def run(self, network: Any, images: Images) -> Iterator[Detections]:
        """Detect on images with a copy of a network in eval mode, float32, on the CPU.

        Raises UnsupportedError if the variant can't run on this machine.
        """
        with (
            Model(copy.deepcopy(network), self.config, threshold=self.threshold) as model,
            closing(model.stream([image for _, image in images], depth=self.depth, batch=self.batch)) as results,
        ):
            for _, found in results:
                yield found


def write_variant(
    path: Path,
    variant: DetectorVariant,
    network: Network,
    images: Images,
    on_progress: Callable[[], object] = lambda: None,
) -> None:
    """Run a variant on images and write a record of what it finds.

    Args:
        path: The file to write, .jsonl; it appears when it is whole.
        variant: The variant to run.
        network: The network, in eval mode, float32, on the CPU.
        images: The images to run on.
        on_progress: Called after each image.

    Raises:
        OutputError: The file can't be written.
        UnsupportedError: The variant can't run on this machine.
    """
    device = variant.config.resolve_device()
    precision = variant.config.resolve_precision(device)

    def detect() -> Iterator[tuple[str, NDArray[np.uint8], Detections]]:
        for (name, image), found in zip(images, variant.run(network, images), strict=True):
            yield name, image, found
            on_progress()

    write_record(
        path,
        detect(),
        classes=network.spec.class_names,
        threshold=variant.threshold,
        name=variant.name,
        program=variant.program,
        model=network.spec.name,
        weights=digest_weights(network),
        config=asdict(variant.config) | {"device": str(device), "precision": precision},
        depth=variant.depth,
        batch=variant.batch,
    )
