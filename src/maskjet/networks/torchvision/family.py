"""torchvision's two-stage detectors for `maskjet.load`, plain or as `maskjet.rewrites.optimize` made them.

The functions are those of `networks.Family`.
"""

from __future__ import annotations

import copy
import os

from torch import nn

from maskjet.config import EngineConfig
from maskjet.engine.steps import Postprocessing
from maskjet.errors import InputError
from maskjet.networks import Defaults
from maskjet.networks.torchvision.detector import StaticDetector, check
from maskjet.networks.torchvision.optimizing import optimize
from maskjet.networks.torchvision.steps import TwoStage


def serves(model: object) -> bool:
    """Whether this is a module, which is taken for a detector of this family."""
    return isinstance(model, nn.Module)


def defaults(model: nn.Module) -> Defaults:
    """The detector's own settings.

    Raises:
        UnsupportedError: The model is built in an unsupported way, which the message names.
    """
    if isinstance(model, StaticDetector):
        return Defaults(model.spec.threshold, model.spec.max_detections)
    check(model)
    return Defaults(model.roi_heads.score_thresh, model.roi_heads.detections_per_img)  # type: ignore[arg-type, union-attr]


def load(model: nn.Module, weights: str | os.PathLike[str] | None = None) -> StaticDetector:
    """Copy the detector, which stays the user's; a plain one is optimised.

    Raises:
        InputError: Weights are given.
        UnsupportedError: The model is built in an unsupported way, which the message names.
    """
    if weights is not None:
        raise InputError("weights must be None for a detector, which has its own.")
    return copy.deepcopy(model) if isinstance(model, StaticDetector) else optimize(model)


def make_steps(network: StaticDetector, config: EngineConfig, postprocessing: Postprocessing) -> TwoStage:
    """Make the steps of a detector on its device."""
    return TwoStage(network, config, postprocessing)
