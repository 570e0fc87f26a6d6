"""What pooling boxes from a feature pyramid costs: torchvision's multi-level pooler and ours."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks.timing import take_turns
from benchmarks.two_stage_contest import BASELINE, Measurement
from benchmarks.workloads import pyramid, to_device
from maskjet import ops
from maskjet.errors import MaskjetError
from maskjet.profiling import profile_gpu
from maskjet.timing import percentile

_INPUTS = 4  # that it rotates through


def measure_pooling(boxes: int, size: int, runs: int, device: torch.device) -> list[Measurement]:
    """Time both on the features of an image of 800 × 1333 pixels.

    Args:
        boxes: How many.
        size: Bins along each side.
        runs: Timed calls of each.
        device: Where.

    Raises:
        MaskjetError: What they return is not equal; nothing was timed.
    """
    from torchvision.ops import MultiScaleRoIAlign

    pooler = MultiScaleRoIAlign([str(level) for level in range(4)], output_size=size, sampling_ratio=2)
    given = [to_device(pyramid(boxes, size)(torch.Generator().manual_seed(n)), device) for n in range(_INPUTS)]
    # To each the layout that it takes without a copy.
    theirs = [{str(level): f.contiguous() for level, f in enumerate(inputs["features"])} for inputs in given]
    calls: dict[str, Callable[[int], torch.Tensor]] = {
        BASELINE: lambda n: pooler(theirs[n % _INPUTS], [given[n % _INPUTS]["boxes"][0]], [(800, 1344)]),
        "maskjet": lambda n: ops.roi_align(**given[n % _INPUTS]),
    }
    used = ops.RECORDS["roi_align"].tolerance_used(given[0], *(call(0) for call in calls.values()))
    if not used <= 1:
        raise MaskjetError(f"ops.roi_align must equal torchvision's, got a difference of {used:.3g} tolerances.")
    times_ms = take_turns(calls, runs=runs, device=device)
    median = {name: statistics.median(times) for name, times in times_ms.items()}
    found = []
    for name, call in calls.items():
        work = profile_gpu(lambda call=call: call(0), device)  # type: ignore[misc]
        found.append(
            Measurement(
                setting=f"pooling {boxes:,} boxes, {size} × {size}",
                contender=name,
                runs=runs,
                p50_ms=round(median[name], 4),
                p95_ms=round(percentile(times_ms[name], 0.95), 4),
                speedup=round(median[BASELINE] / median[name], 2),
                found=boxes,
                matched=1.0,
                largest_difference=0.0,
                smallest_iou=None,
                gpu_ms=None if work is None else round(work.gpu_us / 1000, 4),
                kernels=None if work is None else work.launches,
            )
        )
    return found
