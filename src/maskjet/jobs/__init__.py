"""Many files, many GPUs, many machines: jobs cut into segments, each of which becomes one Parquet part."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskjet.jobs.dataset import ray_dataset
    from maskjet.jobs.planning import plan
    from maskjet.jobs.processing import process
    from maskjet.jobs.segments import Segment, Settings

__all__ = ["Segment", "Settings", "plan", "process", "ray_dataset"]

_HOMES = {
    "Segment": "segments",
    "Settings": "segments",
    "plan": "planning",
    "process": "processing",
    "ray_dataset": "dataset",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for on first use (PEP 562)."""
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(f"maskjet.jobs.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module 'maskjet.jobs' has no attribute {name!r}")
