"""The report of `export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ExportedFile:
    """A file that was written and compared; prints as a few lines."""

    path: str
    """Path of the exported file."""
    size: int
    """Size of the file in bytes."""
    opset: int
    """ONNX opset of the file."""
    ops: Mapping[str, int]
    """Number of nodes by op, most frequent first."""
    runtime: str
    """Runtime and version of the comparison, as "ONNX Runtime 1.24.0"."""
    batches: Sequence[int]
    """Batch sizes of the comparison."""
    differences: Mapping[str, tuple[float, float]]
    """Output name to (difference from the module's output, limit): the largest difference in float32, the mean in
    float16."""

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
