"""What a precision costs in detections: the demo model in each, against float32, on streets it was not trained on.

Each variant runs step by step or in a graph, compiled or not, as its name says; pairs are made as in `parity.pair`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet import traffic
from maskjet.bench import report
from maskjet.bench.machine import describe_machine
from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.errors import UnsupportedError
from maskjet.model import Model, read_network
from maskjet.networks.rfdetr import RFDETR
from maskjet.parity.pair import pair_all
from maskjet.traffic import SIZES_HW

_FIRST_SEED = 12_000_000  # the training drew others
_BASELINE = EngineConfig(precision="fp32", engine="eager", compile=False)
VARIANTS: Mapping[str, tuple[EngineConfig, bool]] = {
    "fp32, compiled": (EngineConfig(precision="fp32", compile=True), False),
    "fp16, everything": (EngineConfig(precision="fp16", compile=False), True),
    "fp16": (EngineConfig(precision="fp16", compile=False), False),
    "fp16, compiled": (EngineConfig(precision="fp16", compile=True), False),
    "bf16": (EngineConfig(precision="bf16", compile=False), False),
    "bf16, compiled": (EngineConfig(precision="bf16", compile=True), False),
}
"""By name: how it runs, and whether boxes and scores are computed in that precision too, as `RFDETR.cast` does not."""


@dataclass(frozen=True)
class Measurement:
    """One variant against float32, uncompiled, step by step."""

    variant: str
    """A key of `VARIANTS`."""
    images: int
    """Compared."""
    expected: int
    """Detections in float32."""
    matched: int
    """Of these, found again."""
    extra: int
    """Found that are none of these."""
    mean_confidence_difference: float
    """Of the matched ones, absolute."""
    p95_confidence_difference: float
    """Of the matched ones, absolute."""
    max_confidence_difference: float
    """Of the matched ones, absolute."""
    p95_box_difference_px: float
    """Of the matched ones: the coordinate that moved most."""
    max_box_difference_px: float
    """Of the matched ones: the coordinate that moved most."""
    mean_mask_iou: float
    """Of the matched ones."""
    min_mask_iou: float
    """Of the matched ones."""


@dataclass(frozen=True)
class Report(report.Report):
    """All variants."""

    measurements: Sequence[Measurement]
    """In the order of `VARIANTS`."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per variant."""
        header = (
            "variant",
            "matched",
            "extra",
            "Δconf mean",
            "p95",
            "max",
            "Δbox px p95",
            "max",
            "mask IoU mean",
            "min",
        )
        rows = (
            (
                m.variant,
                f"{m.matched} of {m.expected} ({m.matched / max(m.expected, 1):.2%})",
                str(m.extra),
                f"{m.mean_confidence_difference:.1e}",
                f"{m.p95_confidence_difference:.1e}",
                f"{m.max_confidence_difference:.1e}",
                f"{m.p95_box_difference_px:.3f}",
                f"{m.max_box_difference_px:.2f}",
                f"{m.mean_mask_iou:.5f}",
                f"{m.min_mask_iou:.3f}",
            )
            for m in self.measurements
        )
        return [header, *rows]


def run(
    path: Path | None = None,
    *,
    images: int = 500,
    size_hw: tuple[int, int] = SIZES_HW["312"],
    on_progress: Callable[[], object] = lambda: None,
) -> Report:
    """Compare precisions of the demo model with float32.

    Args:
        path: A JSON file to write the report to.
        images: How many scenes, at least 1.
        size_hw: (height, width) of each.
        on_progress: Called after each variant and the baseline; those that can't be had here are left out.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: images is less than 1.
    """
    report.check_runs(images, "images")
    scenes = [traffic.sample(seed=_FIRST_SEED + number, size_hw=size_hw).image for number in range(images)]
    expected = _detect(scenes, _BASELINE, is_naive=False)
    on_progress()
    measurements, notes = [], []
    for name, (config, is_naive) in VARIANTS.items():
        try:
            actual = _detect(scenes, config, is_naive=is_naive)
        except UnsupportedError as error:
            notes.append(f"{name} left out: {error}")
        else:
            measurements.append(_compare(name, expected, actual))
        on_progress()
    found = Report(describe_machine(), measurements, notes)
    found.write(path)
    return found


def _detect(scenes: Sequence[NDArray[np.uint8]], config: EngineConfig, *, is_naive: bool) -> list[Detections]:
    """Image by image, as a video is."""
    network = _Naive(read_network("demo")) if is_naive else read_network("demo")
    with Model(network, config) as model:
        return [model.predict(scene) for scene in scenes]


class _Naive(RFDETR):
    """A network that is converted as a whole."""

    def __init__(self, network: RFDETR) -> None:
        super().__init__(network.spec)
        self.load_state_dict(network.state_dict())
        self.eval().requires_grad_(requires_grad=False)

    def cast(self, dtype: torch.dtype) -> RFDETR:
        """Convert every parameter and buffer."""
        return self.to(dtype)


def _compare(name: str, expected: Sequence[Detections], actual: Sequence[Detections]) -> Measurement:
    pairs = pair_all(expected, actual)
    confidence, boxes = pairs.confidence_differences or [0.0], pairs.box_differences_px or [0.0]
    masks = pairs.mask_ious or [1.0]
    return Measurement(
        variant=name,
        images=len(expected),
        expected=pairs.matched + pairs.missing,
        matched=pairs.matched,
        extra=pairs.extra,
        mean_confidence_difference=float(np.mean(confidence)),
        p95_confidence_difference=float(np.quantile(confidence, 0.95)),
        max_confidence_difference=max(confidence),
        p95_box_difference_px=float(np.quantile(boxes, 0.95)),
        max_box_difference_px=max(boxes),
        mean_mask_iou=float(np.mean(masks)),
        min_mask_iou=min(masks),
    )
