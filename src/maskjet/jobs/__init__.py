"""Many files, many GPUs, many machines: jobs cut into segments, each of which becomes one Parquet part.

`plan` cuts sources into segments, `process` makes a table of one, and `merge` joins the parts of a job. `ray_dataset`
gives the rows of all segments as a Ray dataset.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskjet.jobs.dataset import ray_dataset
    from maskjet.jobs.merging import merge
    from maskjet.jobs.planning import plan
    from maskjet.jobs.processing import process

__all__ = ["merge", "plan", "process", "ray_dataset"]

GPU_LANES = 8
"""Segments that a GPU works on at a time, unless fewer are asked for: while one is opened or written, others keep it
busy. Each has two batches in flight, and an engine lends 16 slots. H200, 1080p: 1,706 frames/s; with four 1,313."""
_HOMES = {"merge": "merging", "plan": "planning", "process": "processing", "ray_dataset": "dataset"}


def __getattr__(name: str) -> Any:
    """Import what is asked for on first use (PEP 562)."""
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(f"maskjet.jobs.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module 'maskjet.jobs' has no attribute {name!r}")
