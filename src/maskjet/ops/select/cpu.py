"""select on a CPU: threshold first, then rank the few that are left.

The reference sorts all Q × C scores (9,100 for RF-DETR-Seg Nano) to keep some tens.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from maskjet.ops.select import reference


def _rank_passing(scores: torch.Tensor, count: int, thresholds: torch.Tensor) -> torch.Tensor:
    """Rank only pairs above the lowest threshold; NaNs rank first, and use up places."""
    values = scores.numpy()
    lowest = np.fmin.reduce(thresholds.numpy(), initial=np.inf)  # ignoring NaN, which no score exceeds
    flat = np.flatnonzero(values > lowest)
    flat = flat[np.argsort(-values[flat], kind="stable")]
    return torch.from_numpy(flat[: max(count - np.count_nonzero(np.isnan(values)), 0)])


select = partial(reference.select, rank=_rank_passing)
