"""Time the pooling of boxes from a feature pyramid, by torchvision's multi-level pooler and by ours."""

from __future__ import annotations

import torch

from benchmarks.contest import Contest, Entry
from benchmarks.two_stage_contest import BASELINE, DetectorCost
from benchmarks.workloads import Inputs, pyramid, to_device
from maskjet import ops
from maskjet.errors import MaskjetError
from tests.ops.cases import CHECKS

_INPUTS = 4  # inputs that are cycled through


def measure_pooling(boxes: int, size: int, runs: int, device: torch.device) -> list[DetectorCost]:
    """Compare, then time both poolers on the features of an image of 800 × 1333 pixels.

    Args:
        boxes: Number of boxes.
        size: Bins along each side of a pooled box.
        runs: Timed calls of each pooler.
        device: Device of the inputs.

    Raises:
        MaskjetError: The results differ; nothing was timed.
    """
    from torchvision.ops import MultiScaleRoIAlign

    pooler = MultiScaleRoIAlign([str(level) for level in range(4)], output_size=size, sampling_ratio=2)
    given = [to_device(pyramid(boxes, size)(torch.Generator().manual_seed(n)), device) for n in range(_INPUTS)]
    # Each pooler gets the layout that it reads without a copy.
    inputs = [{**each, "theirs": {str(n): f.contiguous() for n, f in enumerate(each["features"])}} for each in given]

    def pool_theirs(inputs: Inputs) -> torch.Tensor:
        pooled: torch.Tensor = pooler(inputs["theirs"], [inputs["boxes"][0]], [(800, 1344)])
        return pooled

    def pool_ours(inputs: Inputs) -> torch.Tensor:
        return ops.roi_align(**{name: value for name, value in inputs.items() if name != "theirs"})

    contest = Contest(inputs, pool_theirs, device)
    share = CHECKS["roi_align"].tolerance_used
    if contest.enter({BASELINE: Entry(pool_theirs, share), "maskjet": Entry(pool_ours, share)}):
        raise MaskjetError(f"ops.roi_align must equal torchvision's, got differences of {contest.used} tolerances.")
    times = contest.time(runs=runs)
    found = []
    for name, each in times.items():
        work = contest.count(name)
        found.append(
            DetectorCost(
                setting=f"pooling {boxes:,} boxes, {size} × {size}",
                contender=name,
                runs=each.runs,
                p50_ms=round(each.p50_ms, 4),
                p95_ms=round(each.p95_ms, 4),
                speedup=round(times[BASELINE].p50_ms / each.p50_ms, 2),
                found=boxes,
                matched=1.0,
                largest_difference=0.0,
                smallest_iou=None,
                gpu_ms=None if work is None else round(work.gpu_us / 1000, 4),
                kernels=None if work is None else work.launches,
            )
        )
    return found
