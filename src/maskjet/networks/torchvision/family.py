"""torchvision's two-stage detectors, as `maskjet.rewrites.optimize` makes them, for `maskjet.load`.

The functions are those of `networks.Family`.
"""

from __future__ import annotations

import copy
import os

from maskjet.config import EngineConfig
from maskjet.engine.steps import Postprocessing
from maskjet.errors import InputError
from maskjet.networks import Defaults
from maskjet.networks.torchvision.detector import StaticDetector
from maskjet.networks.torchvision.steps import TwoStage


def serves(model: object) -> bool:
    """Whether this is a detector of this family."""
    return isinstance(model, StaticDetector)


def defaults(model: StaticDetector) -> Defaults:
    """The detector's own settings."""
    return Defaults(model.spec.threshold, model.spec.max_detections)


def load(model: StaticDetector, weights: str | os.PathLike[str] | None = None) -> StaticDetector:
    """Copy the detector, which stays the user's.

    Raises:
        InputError: Weights are given.
    """
    if weights is not None:
        raise InputError("weights must be None for a detector, which has its own.")
    return copy.deepcopy(model)


def make_steps(network: StaticDetector, config: EngineConfig, postprocessing: Postprocessing) -> TwoStage:
    """Make the steps of a detector on its device."""
    return TwoStage(network, config, postprocessing)
