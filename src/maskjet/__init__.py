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
from maskjet.host import process
from maskjet.version import __version__

if TYPE_CHECKING:
    from maskjet import ops, tracking, traffic
    from maskjet.detections import Detections
    from maskjet.drawing import draw
    from maskjet.engine.deadlines import Deadlines as Deadlines
    from maskjet.evaluation.evaluation import evaluate
    from maskjet.export import rewrites
    from maskjet.masks import coco_rle as coco_rle
    from maskjet.model import Model, load
    from maskjet.outputs.label_options import LabelOptions as LabelOptions
    from maskjet.outputs.opening import Outputs as Outputs
    from maskjet.outputs.opening import check_outputs as check_outputs
    from maskjet.outputs.opening import open_sinks as open_sinks
    from maskjet.outputs.window import Window as Window
    from maskjet.quantization import quantize
    from maskjet.report import Report
    from maskjet.sources.expansion import expand_sources as expand_sources
    from maskjet.sources.frames import Frame
    from maskjet.sources.frames import Source as Source
    from maskjet.sources.frames import open_source as open_source

# Names of `from maskjet import *`; the other names of _HOMES and _MODULES are as public.
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
    "quantize",
    "rewrites",
    "tracking",
    "traffic",
]

_HOMES = {
    "Deadlines": "engine.deadlines",
    "Detections": "detections",
    "Frame": "sources.frames",
    "LabelOptions": "outputs.label_options",
    "Model": "model",
    "Outputs": "outputs.opening",
    "Report": "report",
    "Source": "sources.frames",
    "Window": "outputs.window",
    "check_outputs": "outputs.opening",
    "draw": "drawing",
    "evaluate": "evaluation.evaluation",
    "expand_sources": "sources.expansion",
    "load": "model",
    "open_sinks": "outputs.opening",
    "open_source": "sources.frames",
    "quantize": "quantization",
}
_MODULES = {
    "coco_rle": "masks.coco_rle",
    "limits": "limits",
    "ops": "ops",
    "rewrites": "export.rewrites",
    "runtimes": "export",  # name before 0.3
    "tracking": "tracking",
    "traffic": "traffic",
}

process.avoid_broken_amx()  # before PyTorch is used
process.shorten_spinning()  # before PyTorch is loaded


def __getattr__(name: str) -> Any:
    """Import public names on first use (PEP 562): PyTorch takes two seconds, which `maskjet --help` saves."""
    if name in _MODULES:
        return importlib.import_module(f"maskjet.{_MODULES[name]}")
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(f"maskjet.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module 'maskjet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES, *_MODULES})
