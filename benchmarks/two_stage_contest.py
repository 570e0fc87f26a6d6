"""Contenders that run a two-stage detector (unchanged, rewritten, in our engine): build, compare, time and count."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.aten import FOLD_NMS, GATHER_LEVELS, PICK_LEVELS, Rewrite, capture
from benchmarks.contest import Contest, Entry, Times
from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.errors import MaskjetError, first_line
from maskjet.export.rewrites import optimize
from maskjet.host.process import garbage_frozen
from maskjet.masks import coco_rle
from maskjet.model import Model
from maskjet.parity.pair import Pairing, pair

Image = NDArray[np.uint8]
Detect = Callable[[Image], Detections]

BASELINE = "torchvision"
"""The contender that others are compared with: unchanged torchvision, which ends with masks pasted on its device."""
_ENCODED = "torchvision, masks as RLE"
_CAPTURED: Mapping[str, Sequence[Rewrite]] = {
    "captured": (),
    "captured, NMS of the first 1,000": (FOLD_NMS,),
    "captured, levels gathered": (GATHER_LEVELS,),
    "captured, level picked in the kernel": (PICK_LEVELS,),
    "captured, both": (FOLD_NMS, PICK_LEVELS),
}
_OURS: Mapping[str, Mapping[str, Any]] = {
    "maskjet, step by step": {"precision": "fp32", "engine": "eager", "compile": False},
    "maskjet, graph": {"precision": "fp32", "engine": "graph", "compile": False},
    "maskjet, graph, compiled": {"precision": "fp32", "engine": "graph", "compile": True},
    "maskjet, graph, fp16": {"precision": "fp16", "engine": "graph", "compile": False},
    "maskjet, graph, fp16, compiled": {"precision": "fp16", "engine": "graph", "compile": True},
}
CONTENDERS = (BASELINE, _ENCODED, *_CAPTURED, *_OURS, "torchvision, torch.compile")
"""Names of the contenders."""
_HALF = 0.5  # a pixel above this probability is inside
_BUDGET_S = 10.0  # per contender, over all turns
_LEAST_MATCHED = 0.5
"""Smallest share of matched detections to be timed: untrained networks rank near-equal scores by the last bit."""


@dataclass(frozen=True)
class DetectorCost:
    """Speed of one contender at one setting, and the agreement of its detections."""

    setting: str
    """One of `SETTINGS`."""
    contender: str
    """One of `CONTENDERS`."""
    runs: int
    """Number of timed images."""
    p50_ms: float
    """Median time of an image, from bytes on the host to the returned result."""
    p95_ms: float
    """95th percentile of the time of an image."""
    speedup: float
    """The baseline's median time divided by this one's."""
    found: float
    """Detections per image."""
    matched: float
    """Share of detections matched with the baseline's, 0..1."""
    largest_difference: float
    """Largest confidence difference of a matched pair."""
    smallest_iou: float | None
    """Smallest mask IoU of a matched pair; None without masks or pairs."""
    gpu_ms: float | None = None
    """GPU time of the kernels per image, in milliseconds; None on a CPU."""
    launches: float | None = None
    """Kernels and graphs that the host launches per image; None on a CPU."""
    kernels: float | None = None
    """Kernels that the GPU runs per image; None on a CPU."""
    waits: float | None = None
    """Blocking calls per image, without the one event that our engine polls; None on a CPU."""


class Detectors(ExitStack):
    """The contenders on one device and at one setting."""

    def __init__(self, planted: Any, images: Sequence[Image], device: torch.device) -> None:
        super().__init__()
        self._planted, self._images, self._device = planted, images, device
        self._captured: Any = None
        self._models: dict[str, Model] = {}
        self._same: dict[str, Pairing] = {}
        self._expected = {id(image): _as_detections(_detect(planted, image, device)) for image in images}
        self._contest = Contest(images, lambda image: self._expected[id(image)], device)
        self.notes: list[str] = []

    def enter(self, name: str) -> None:
        """Build a contender and compare its detections; if it can't take part, note why."""
        same = self._same[name] = Pairing()

        def share(_image: Image, expected: Detections, actual: Any) -> float:
            same.add(pair(expected, _as_detections(actual)))
            return (1 - same.share) / (1 - _LEAST_MATCHED)

        try:
            call = self._build(name)
            for _ in range(2):
                call(self._images[0])  # the second captures the CUDA graph
            refused = self._contest.enter({name: Entry(call, share)})
        except (MaskjetError, RuntimeError, ImportError) as error:
            self.notes.append(f"{name} left out: {first_line(error)}")
            return
        if refused:
            self.notes.append(f"{name} left out: {same.share:.1%} of its detections match")

    def _build(self, name: str) -> Any:
        """Build a function from an image to its detections, or to torchvision's result."""
        if name in _OURS:
            threshold = self._planted.roi_heads.score_thresh
            config = EngineConfig(device=str(self._device), **_OURS[name])
            model = self.enter_context(Model(optimize(self._planted), config, threshold=threshold))
            self._models[name] = model
            return model.predict
        if name in _CAPTURED:
            return self._rewrite(_CAPTURED[name])
        detector = self._planted
        if name == "torchvision, torch.compile":
            from torch._dynamo.utils import counters

            torch._dynamo.reset()
            counters.clear()
            compiled = torch.compile(detector)
            with torch.inference_mode():
                compiled([to_float(self._images[0], self._device)])  # type: ignore[no-untyped-call]
            breaks, graphs = sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
            self.notes.append(f"{name}: {graphs} graphs, {breaks} breaks")
            detector = compiled
        if name == _ENCODED:
            return lambda image: _as_detections(_detect(detector, image, self._device))
        return lambda image: _detect(detector, image, self._device)

    def _rewrite(self, rewrites: Sequence[Rewrite]) -> Any:
        given = [to_float(self._images[0], self._device)]
        if self._captured is None:
            self._captured = capture(self._planted, given)
        program = replace(self._captured, module=copy.deepcopy(self._captured.module))
        for rewrite in rewrites:
            rewrite.apply(program.module)
        return lambda image: program.detect([to_float(image, self._device)])[0]

    def slower_paths(self) -> list[str]:
        """List the slower paths that our models took so far, with counts."""
        fallbacks = {name: model.report().fallbacks for name, model in self._models.items()}
        return [f"{name}: {times} × {why}" for name, taken in fallbacks.items() for why, times in taken.items()]

    def measure(self, setting: str, runs: int) -> list[DetectorCost]:
        """Time the contenders in turns, then count their GPU work."""
        gc.collect()
        with garbage_frozen():
            times = self._contest.time(runs=runs, budget_s=_BUDGET_S)
        baseline_ms = times[BASELINE].p50_ms
        return [
            self._count(name, self._measure(setting, name, each, baseline_ms / each.p50_ms))
            for name, each in times.items()
        ]

    def _measure(self, setting: str, name: str, times: Times, speedup: float) -> DetectorCost:
        same = self._same[name]
        return DetectorCost(
            setting=setting,
            contender=name,
            runs=times.runs,
            p50_ms=round(times.p50_ms, 3),
            p95_ms=round(times.p95_ms, 3),
            speedup=round(speedup, 2),
            found=(same.matched + same.extra) / len(self._images),
            matched=same.share,
            largest_difference=max(same.confidence_differences, default=0.0),
            smallest_iou=min(same.mask_ious, default=None),
        )

    def _count(self, name: str, measured: DetectorCost) -> DetectorCost:
        work = self._contest.count(name)
        if work is None:
            return measured
        return replace(
            measured,
            gpu_ms=round(work.gpu_us / 1000, 3),
            kernels=work.kernels,
            launches=work.launches,
            waits=work.waits,
        )


def to_float(image: Image, device: torch.device) -> torch.Tensor:
    """Convert to float32 [3, H, W], 0..1, on a device."""
    return torch.from_numpy(image).to(device).permute(2, 0, 1) / 255


@torch.inference_mode()
def _detect(model: Any, image: Image, device: torch.device) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = model([to_float(image, device)])[0]
    return found


def _as_detections(found: Any) -> Detections:
    """Convert torchvision's result to detections on the host, with masks as RLE."""
    if isinstance(found, Detections):
        return found
    size_hw, rle = (0, 0), None
    if "masks" in found:
        masks = (found["masks"][:, 0] > _HALF).cpu().numpy()
        size_hw, rle = masks.shape[1:], coco_rle.encode(masks)
    return Detections(
        image_size=size_hw,
        xyxy=found["boxes"].cpu().numpy(),
        confidence=found["scores"].cpu().numpy(),
        class_id=found["labels"].int().cpu().numpy(),
        rle=rle,
    )
