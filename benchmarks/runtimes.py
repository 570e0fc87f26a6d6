"""Compare runtimes on the same network: detections against PyTorch's in float32, and time of an image, in one process.

On a CPU a video is run, too, as `make demo` does: from the file to JSON lines and an annotated video.

The networks are the demo model, and RF-DETR-Seg Nano with random weights that finds about 25 instances.

    python -m benchmarks.runtimes --out benchmarks/results/runtimes_cpu.json

On a GPU ONNX Runtime needs onnxruntime-gpu in place of onnxruntime.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from benchmarks.command import DeviceOption, OnlyOption, ReportOption, SizeOption, check_names, start
from benchmarks.contest import Contest, Entry
from benchmarks.peers.rfdetr import build_exact, export_onnx
from benchmarks.planted import plant_network
from benchmarks.video import OUTPUTS, write_outputs
from maskjet.checks import check_count
from maskjet.cli.options import parse_size, print_result, progress
from maskjet.config import EngineConfig, Precision, RuntimeName
from maskjet.detections import Detections
from maskjet.export import export
from maskjet.host import measuring
from maskjet.host.machine import BF16_PRODUCTS, cpu_features, describe_machine
from maskjet.host.process import convolutions_in_tf32
from maskjet.model import Model
from maskjet.networks import read_network
from maskjet.networks.rfdetr import RFDETR
from maskjet.parity.pair import Pairing, pair
from maskjet.quantization import quantize
from maskjet.spec import SPECS
from maskjet.traffic import sample, write_coco, write_video

NETWORKS = ("demo", "rf-detr-seg-nano")
"""Names of the networks."""
_IMAGES = 6
_CALIBRATION = 80  # images of a quantisation, half of which calibrate
_SURVIVORS = 25
_FRAMES = 60  # of the video
_TURNS = 3
_EXACT = 1e-3
"""Of float32: difference in confidence that is no rounding. Scores have a slope of 1/4 at most, logits of files lie
within 1e-4 of the network's, and tokens within rounding may change places, which moves single scores further."""
_ROUNDED = 0.1
"""Of the other precisions."""
_UNPAIRED = 0.1
"""Share of detections that may have no counterpart: those near the threshold, or of tokens that changed places."""

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class RuntimeCost:
    """One runtime with one network."""

    network: str
    """One of `NETWORKS`."""
    runtime: str
    """The runtime, and whose file it runs if that is not ours."""
    precision: str
    """Precision of weights and activations."""
    detections: int
    """Detections on all images."""
    unpaired: int
    """Detections of either side without a counterpart on the other, which is PyTorch in float32."""
    confidence_difference: float | None
    """Largest difference in confidence of a pair; None if there is no pair."""
    p50_ms: float | None
    """Median time of an image, from the frame to the RLE; None if it was not timed as it finds other instances."""
    p95_ms: float | None
    """95th percentile of that."""
    video_fps: float | None
    """Frames per second of a video, decoded, found, drawn, encoded; None on a GPU and for those that read no video."""


@dataclass(frozen=True, kw_only=True)
class RuntimesReport(measuring.MeasuredReport):
    """All runtimes."""

    measurements: Sequence[RuntimeCost]
    """By network, PyTorch in float32 first."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per runtime and network."""
        header = (
            "network",
            "runtime",
            "precision",
            "detections",
            "unpaired",
            "confidence",
            "p50 ms",
            "p95 ms",
            "video/s",
        )
        rows: list[tuple[str, ...]] = [header]
        for m in self.measurements:
            counts = (str(m.detections), str(m.unpaired), _shown(m.confidence_difference, ".1e"))
            times = (_shown(m.p50_ms, ".1f"), _shown(m.p95_ms, ".1f"), _shown(m.video_fps, ".1f"))
            rows.append((m.network, m.runtime, m.precision, *counts, *times))
        return rows


def _shown(value: float | None, digits: str) -> str:
    return "-" if value is None else f"{value:{digits}}"


@dataclass
class _Contender:
    """A detector that takes part, and how it compared."""

    detect: Callable[[Image], Detections]
    runtime: str
    precision: str
    model: Model | None = None
    found: int = 0
    pairs: Pairing = field(default_factory=Pairing)

    def share(self, _image: object, expected: Detections, actual: Detections) -> float:
        """How much of the tolerance is used, of confidences and of detections without a counterpart."""
        pairs = pair(expected, actual)
        self.found += len(actual)
        self.pairs.add(pairs)
        if self.precision == "int8":  # its certificate judges
            return 0.0
        unpaired = (pairs.missing + pairs.extra) / max(len(expected) + len(actual), 1)
        moved = max(pairs.confidence_differences, default=math.inf)
        return max(unpaired / _UNPAIRED, moved / (_EXACT if self.precision == "fp32" else _ROUNDED))


def run(
    path: Path | None = None,
    *,
    names: Sequence[str] = NETWORKS,
    device: str = "auto",
    size_hw: tuple[int, int] = (720, 1280),
    runs: int = 15,
    on_progress: Callable[[], object] = lambda: None,
) -> RuntimesReport:
    """Compare all runtimes on a device, then time those that agree, in turns.

    Args:
        path: A JSON file to write the report to.
        names: Networks, of `NETWORKS`.
        device: The device, as `maskjet.load` takes it.
        size_hw: (height, width) of the images, which are drawn streets.
        runs: Timed calls of each, at least 1.
        on_progress: Called once a network is done.

    Raises:
        InputError: runs is less than 1, or a name is not known.
        MissingDependencyError: A runtime, or rfdetr, is not installed.
        UnsupportedError: The device, or ONNX Runtime on it, is not available.
    """
    check_count("runs", runs)
    check_names(names, NETWORKS)
    place = EngineConfig(device=device).resolve_device()
    images = [np.array(sample(seed, size_hw=size_hw).image) for seed in range(_IMAGES)]
    costs: list[RuntimeCost] = []
    notes: list[str] = []
    for name in names:
        network = read_network("demo") if name == "demo" else plant_network(SPECS[name], images, survivors=_SURVIVORS)
        with TemporaryDirectory() as folder, ExitStack() as stack, convolutions_in_tf32(False):
            contenders = list(_contenders(network, Path(folder), place, stack, images, has_peer=name != "demo"))
            found, refused = _measure(name, contenders, images, place, runs, Path(folder))
        costs += found
        notes += refused
        on_progress()
    result = RuntimesReport(machine=describe_machine(), measurements=costs, notes=notes)
    result.write(path)
    return result


def _contenders(
    network: RFDETR, folder: Path, device: torch.device, stack: ExitStack, images: Sequence[Image], *, has_peer: bool
) -> Iterator[_Contender]:
    """PyTorch in float32 first, then the others; rfdetr and its file only of networks that rfdetr has."""

    def add(name: str, precision: Precision, **choices: Any) -> _Contender:
        config = EngineConfig(device=str(device), precision=precision, **choices)
        model = stack.enter_context(Model(copy.deepcopy(network), config))
        return _Contender(model.predict, name, precision, model)

    def read(path: str, name: str, precision: str, runtime: RuntimeName = "auto") -> _Contender:
        model = stack.enter_context(Model(read_network(path), EngineConfig(device=str(device), runtime=runtime)))
        return _Contender(model.predict, name, precision, model)

    yield add("PyTorch", "fp32", runtime="torch")
    if device.type == "cuda":
        yield add("PyTorch, compiled", "fp16", runtime="torch", compile=True)
        yield add("fused", "fp16", runtime="fused")
    else:
        yield add("PyTorch", "bf16")
    exact, half = (
        export(network, folder / "exact.onnx").path,
        export(network, folder / "half.onnx", precision="fp16").path,
    )
    yield read(exact, "ONNX Runtime", "fp32")
    if device.type == "cpu":
        yield add("OpenVINO", "fp32", runtime="openvino")
        if BF16_PRODUCTS & cpu_features():
            yield add("OpenVINO", "bf16", runtime="openvino")
        if has_peer:
            yield read(_quantise(network, images[0].shape[:2], folder), "OpenVINO", "int8")
        else:
            yield add("OpenVINO", "int8")  # the demo's own file
    yield read(half, "ONNX Runtime", "fp16")
    if has_peer:
        theirs = export_onnx(network.state_dict(), network.spec, folder)
        yield read(theirs, "ONNX Runtime, rfdetr's file", "fp32")
        peer = build_exact(network.state_dict(), network.spec, device, network.spec.threshold)
        yield _Contender(peer.detect, "rfdetr's predict", "fp32")


def _quantise(network: RFDETR, size_hw: tuple[int, ...], folder: Path) -> str:
    """Write a network as INT8, whatever it loses: random weights show nothing of that."""
    write_coco(folder / "streets", images=_CALIBRATION, size_hw=(size_hw[0], size_hw[1]))
    quantize(network, folder / "streets" / "images", folder / "int8.xml", budget=1.0)
    return str(folder / "int8.xml")


def _measure(
    network: str,
    contenders: Sequence[_Contender],
    images: Sequence[Image],
    device: torch.device,
    runs: int,
    folder: Path,
) -> tuple[list[RuntimeCost], list[str]]:
    """Compare, then time; returns the costs, and a remark for each one that differs too much."""
    contest = Contest(images, contenders[0].detect, device)
    named = {f"{each.runtime} {each.precision}": each for each in contenders}
    refused = contest.enter({name: Entry(each.detect, each.share) for name, each in named.items()})
    times = contest.time(runs=runs)
    rates: dict[str, list[float]] = {name: [] for name in named}
    if device.type == "cpu":
        street = folder / "street.mp4"
        write_video(street, frames=_FRAMES, size_hw=(images[0].shape[0], images[0].shape[1]))
        outs = [str(folder / name) for name in OUTPUTS["JSON lines + annotated video"]]
        for _ in range(_TURNS):
            for name, each in named.items():
                if each.model is not None and name not in refused:
                    rates[name].append(write_outputs(each.model, street, outs))
    costs = [
        RuntimeCost(
            network,
            each.runtime,
            each.precision,
            each.found,
            each.pairs.missing + each.pairs.extra,
            max(each.pairs.confidence_differences, default=None),
            None if name in refused else times[name].p50_ms,
            None if name in refused else times[name].p95_ms,
            median(rates[name]) if rates[name] else None,
        )
        for name, each in named.items()
    ]
    return costs, [f"{network} in {name} is not timed: it finds other instances" for name in refused]


def main(
    out: ReportOption = None,
    size: SizeOption = "720p",
    only: OnlyOption = None,
    device: DeviceOption = "auto",
    runs: Annotated[int, typer.Option(help="Timed images per runtime.")] = 15,
) -> None:
    """Compare PyTorch, ONNX Runtime and others, and time those that find the same."""
    names = only or NETWORKS
    with progress("comparing", len(names)) as advance:
        found = run(out, names=names, device=device, size_hw=parse_size(size), runs=runs, on_progress=advance)
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
