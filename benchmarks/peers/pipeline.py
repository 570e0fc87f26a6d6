"""Pipelines of other projects, and variants of the parity study that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.variants import DetectorVariant, Images
from maskjet.detections import Detections
from maskjet.networks.rfdetr import RFDETR
from maskjet.spec import ModelSpec

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Pipeline:
    """A peer's pipeline, which takes a frame, uint8 [H, W, 3], RGB."""

    predict: Callable[[Image], Any]
    """What the peer's users call; the result's length is the number of detections, masks stay as the peer has them."""
    detect: Callable[[Image], Detections]
    """The same with RLE masks; the detections own their memory."""


BuildPipeline = Callable[[Mapping[str, torch.Tensor], ModelSpec, torch.device, float], Pipeline]
"""Builds a pipeline from weights, spec, device and threshold.

The weights are float32, as in `RFDETR(spec).state_dict()`, and copied. Raises UnsupportedError where it can't run.
"""


@dataclass(frozen=True, kw_only=True)
class PeerVariant(DetectorVariant):
    """Another project's pipeline, which takes only the device from `config`."""

    program: str
    """Name of the project."""
    build: BuildPipeline = field(compare=False, repr=False)
    """Builds its pipeline."""

    def run(self, network: Any, images: Images) -> Iterator[Detections]:
        """Detect on images, as `DetectorVariant.run`."""
        assert isinstance(network, RFDETR)
        detect = self.build(network.state_dict(), network.spec, self.config.resolve_device(), self.threshold).detect
        return (detect(image) for _, image in images)
