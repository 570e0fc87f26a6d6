"""The report of a model: how it runs, and counts of its work."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from maskjet.engine.engine import Engine
from maskjet.host import process


@dataclass(frozen=True)
class Report:
    """Implementations that a model runs with, and counts of its work so far.

    Examples:
        >>> import maskjet
        >>> report = maskjet.load("demo", device="cpu").report()
        >>> report.precision, report.images
        ('fp32', 0)
    """

    model: str
    """Name of the model's spec."""
    device: str
    """Device of the model, with the name of the hardware."""
    precision: str
    """Precision of the network: "fp32", "fp16" or "bf16"."""
    engine: str
    """Whether the steps run as CUDA graphs or eagerly, and why."""
    network: str
    """Runtime of the network: whether it is compiled, for which batches and how long that took, or why not; or the
    runtime of an exported file."""
    resize: str
    """How frames are resized to the network's input."""
    steps: Mapping[str, str]
    """Step to the implementation that serves it and why it was chosen."""
    graphs: Mapping[str, str]
    """Batch, layout and input size to the graph captured for it: launches by the host, kernels and copies on the GPU,
    and the memory that it shares with the slot's other graphs."""
    images: int
    """Images processed so far."""
    tiles: int
    """Tiles processed so far, including whole images processed with them."""
    detections: int
    """Detections returned so far."""
    moved: int
    """Images so far that were not detected on: their detections were moved from others, see `detect` of `stream`."""
    dropped: int
    """Frames dropped so far because newer ones had arrived."""
    tracks: int
    """Tracks confirmed so far by streams with `track`: the sum of each source's highest id."""
    tracking_ms: float
    """Mean time of tracking a frame in milliseconds; 0 without tracking."""
    fallbacks: Mapping[str, int]
    """Counts of slower paths taken so far, by op and reason."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        tracked = f", {self.tracks} tracks in {self.tracking_ms:.2f} ms per frame" if self.tracking_ms else ""
        tiles = f" in {self.tiles} tiles" if self.tiles else ""
        tiles += f", {self.moved} of them by motion" if self.moved else ""
        done = f"{self.images} images{tiles}, {self.detections} detections"
        rows = {
            **{name: getattr(self, name) for name in ("model", "device", "precision", "engine", "network", "resize")},
            **self.steps,
            **{f"graph {kind}": what for kind, what in self.graphs.items()},
            "so far": f"{done}, {self.dropped} frames dropped{tracked}",
            "fallbacks": ", ".join(f"{why}: {times}" for why, times in self.fallbacks.items()) or "none",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows.items())


def make_report(name: str, engine: Engine) -> Report:
    """Make the report of an engine that runs the model of this name."""
    steps, why_no_graph = engine.steps, engine.why_no_graph
    return Report(
        model=name,
        device=_device_name(steps.device),
        precision=steps.precision,
        engine="one CUDA graph per batch" if why_no_graph is None else f"step by step (no graph: {why_no_graph})",
        network=str(steps.runtime),
        resize=steps.resizing + ("" if steps.resample == "bilinear" else f", {steps.resample}"),
        steps={name: f"{choice.name} ({choice.why})" for name, choice in steps.choices.items()},
        graphs=engine.graphs(),
        **{name: engine.done[name] for name in ("images", "tiles", "detections", "moved", "dropped", "tracks")},
        tracking_ms=engine.done["tracking_us"] / max(engine.done["tracked"], 1) / 1000,
        fallbacks=dict(steps.fallbacks),
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    facts = (platform.machine(), f"{torch.get_num_threads()} threads", *process.notes())
    return f"cpu ({', '.join(facts)})"
