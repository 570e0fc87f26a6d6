"""What `export` may put behind a network, and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from maskjet.config import DEFAULT_THRESHOLD, EngineConfig
from maskjet.spec import BOUNDS, check_whole


@dataclass(frozen=True)
class Postprocess:
    """Which detections a file chooses."""

    threshold: float = DEFAULT_THRESHOLD
    """A confidence must exceed it, 0..1."""
    class_thresholds: Mapping[str, float] = field(default_factory=dict)
    """Name of a class to the threshold that it has instead."""
    classes: Sequence[str] | None = None
    """Names of the classes to report; None for all."""
    max_detections: int = EngineConfig.max_detections
    """Most detections per image, the most confident ones."""

    def __post_init__(self) -> None:
        check_whole("max_detections", self.max_detections, BOUNDS["num_select"])


@dataclass(frozen=True)
class ExportedFile:
    """A file that was written and compared; prints as a few lines."""

    path: str
    """The file."""
    size: int
    """Its size in bytes."""
    opset: int
    """The ONNX opset of its ops."""
    ops: Mapping[str, int]
    """Number of nodes by op, most frequent first."""
    runtime: str
    """What it was compared in: "ONNX Runtime 1.24.0"."""
    batches: Sequence[int]
    """Numbers of images that it was compared with."""
    differences: Mapping[str, tuple[float, float]]
    """Name of each output to its difference from the module's, and the limit of that: the largest in float32, the mean
    in float16."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        differences = {
            name: {"difference": difference, "limit": limit} for name, (difference, limit) in self.differences.items()
        }
        return {**vars(self), "ops": dict(self.ops), "batches": [*self.batches], "differences": differences}

    def __str__(self) -> str:
        batches = " and ".join(map(str, self.batches))
        lines = [
            f"wrote {self.path}: {self.size / 1e6:.1f} MB, opset {self.opset}, {sum(self.ops.values())} nodes",
            f"equal to the network in {self.runtime}, batches of {batches}:",
        ]
        for name, (difference, limit) in self.differences.items():
            lines.append(f"  {name} differ by {difference:.1e}, the limit is {limit:.1e}")
        return "\n".join(lines)
