"""Instance masks from frames as fast as the hardware allows, with proof that the answer did not change.

Examples:
    >>> import maskjet
    >>> model = maskjet.load("demo")
    >>> model.predict(maskjet.traffic.sample(seed=3).image)  # doctest: +ELLIPSIS
    Detections(... on 1280×720: ...; masks)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from maskjet import process
from maskjet.errors import (
    CheckpointError,
    DeviceError,
    FrameError,
    InputError,
    MaskjetError,
    MissingDependencyError,
    OutputError,
    SourceError,
    UnsupportedError,
)
from maskjet.version import __version__

if TYPE_CHECKING:
    from maskjet import ops, rewrites, tracking, traffic
    from maskjet.detections import Detections
    from maskjet.drawing import draw
    from maskjet.media.frames import Frame
    from maskjet.model import Model, load
    from maskjet.parity.evaluation import evaluate
    from maskjet.report import Report

__all__ = [
    "CheckpointError",
    "Detections",
    "DeviceError",
    "Frame",
    "FrameError",
    "InputError",
    "MaskjetError",
    "MissingDependencyError",
    "Model",
    "OutputError",
    "Report",
    "SourceError",
    "UnsupportedError",
    "__version__",
    "draw",
    "evaluate",
    "load",
    "ops",
    "rewrites",
    "tracking",
    "traffic",
]

_HOMES = {
    "Detections": "detections",
    "Frame": "media.frames",
    "Model": "model",
    "Report": "report",
    "draw": "drawing",
    "evaluate": "parity.evaluation",
    "load": "model",
}
_MODULES = ("ops", "rewrites", "tracking", "traffic")

process.avoid_broken_amx()  # before PyTorch is used


def __getattr__(name: str) -> Any:
    """Import what is asked for on first use (PEP 562): PyTorch takes two seconds, and `maskjet --help` needs none."""
    if name in _MODULES:
        return importlib.import_module(f"maskjet.{name}")
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(f"maskjet.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module 'maskjet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
