"""torchvision's two-stage detectors for `maskjet.load`: by name, or as modules, optimised or not.

The functions are those of `networks.Family`.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

from torch import nn

from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.networks.torchvision.checkpoint import PREFIX, read_detector
from maskjet.networks.torchvision.detector import StaticDetector
from maskjet.networks.torchvision.optimizing import COCO_LABELS, optimize
from maskjet.networks.torchvision.steps import TwoStage
from maskjet.postprocessing import Postprocessing


def serves(model: object) -> bool:
    """Whether a model is a name with this family's prefix, or a module."""
    return isinstance(model, nn.Module) or (isinstance(model, str) and model.startswith(PREFIX))


def load(
    model: nn.Module | str, weights: str | os.PathLike[str] | None = None, input_size: tuple[int, int] | None = None
) -> StaticDetector:
    """Copy a detector, optimising a plain one; for a name, fill one from a state dict.

    Raises:
        InputError: Weights are given for a module, or none for a name; or an input size is given.
        CheckpointError: The weights can't be read or are of another network.
        MissingDependencyError: A name is given, and torchvision is not installed.
        UnsupportedError: The model is built in an unsupported way, which the message names.
    """
    if input_size is not None:
        raise InputError(
            f"input_size must be None for torchvision's detectors, whose rule is their own, got {input_size}."
        )
    if isinstance(model, str):
        return _fill(model, weights)
    if weights is not None:
        raise InputError("weights must be None for a detector, which has its own.")
    return copy.deepcopy(model) if isinstance(model, StaticDetector) else optimize(model)


def _fill(model: str, weights: str | os.PathLike[str] | None) -> StaticDetector:
    if weights is None:
        raise InputError(
            f"weights must be the path of a state dict for {model!r}, got None; maskjet downloads none. torchvision's "
            "own are in ~/.cache/torch/hub/checkpoints once it has used them."
        )
    if not isinstance(weights, str | os.PathLike):
        raise InputError(f"weights must be a name or a path, got a {type(weights).__name__}.")
    detector = read_detector(model.removeprefix(PREFIX), Path(weights))
    labels = detector.roi_heads.box_predictor.cls_score.out_features
    # Classes are chosen by name, so each needs one.
    names = None if labels == COCO_LABELS else {label: str(label) for label in range(1, labels)}
    return optimize(detector, class_names=names)


def make_steps(network: StaticDetector, config: EngineConfig, postprocessing: Postprocessing) -> TwoStage:
    """Make the steps of a detector on its device.

    Raises:
        InputError: The config asks for other resizing than torchvision's.
    """
    for name in ("resize", "letterbox_color", "letterbox_place"):
        if getattr(config, name) != "auto":
            raise InputError(
                f"{name} must be 'auto' for torchvision's detectors, whose rule is their own, "
                f"got {getattr(config, name)!r}."
            )
    return TwoStage(network, config, postprocessing)
