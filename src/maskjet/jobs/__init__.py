"""Batch jobs over many files, on several GPUs or machines.

`plan` cuts sources into segments, `process` makes a table of one, which becomes one Parquet file, a part, and `merge`
joins the parts of a job.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskjet.jobs.merging import merge
    from maskjet.jobs.planning import plan
    from maskjet.jobs.processing import process

__all__ = ["merge", "plan", "process"]

_HOMES = {"merge": "merging", "plan": "planning", "process": "processing"}


def __getattr__(name: str) -> Any:
    """Import a public function on first use (PEP 562)."""
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(f"maskjet.jobs.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module 'maskjet.jobs' has no attribute {name!r}")
