"""Run many sources through one model for long: nothing may grow, and no frame may be lost or come twice.

    python -m benchmarks.soak --sources 32 --seconds 2400 --out benchmarks/results/soak_cpu.json
    python -m benchmarks.soak --sources 32 --seconds 400 --size 720p --decoder cuda --out soak_h200.json

Each source plays a street video over and over, so that files are opened and closed all the time. Without a GPU the
network is tiny: what is tested is around it.
"""

from __future__ import annotations

import itertools
import os
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.command import ReportOption, SizeOption, start
from benchmarks.planted import TINY, plant_network
from benchmarks.reach_speed import gpu_mib
from benchmarks.trend import Sampler, Trend
from maskjet import traffic
from maskjet.checks import check_count
from maskjet.cli.options import parse_size, print_result, with_config
from maskjet.config import EngineConfig
from maskjet.host.files import write_json
from maskjet.host.machine import describe_machine
from maskjet.model import Model
from maskjet.spec import SPECS

_FRAMES = 40  # of a video
_FOUND = 5  # detections per frame
_DEPTH = 4


@dataclass(frozen=True)
class Soak:
    """What a soak has shown."""

    machine: Any
    """The machine and its versions."""
    model: str
    """The network."""
    device: str
    """What it ran on."""
    decoder: str
    """What decoded the videos, as `EngineConfig.decoder` says it."""
    sources: int
    """Sources side by side."""
    seconds: float
    """How long it took."""
    frames: int
    """Frames of all sources."""
    detections: int
    """Detections on them."""
    fewest: int
    """Frames of the source that gave the fewest."""
    most: int
    """Frames of the source that gave the most."""
    out_of_turn: int
    """Frames whose index is not the one after their source's last: lost, twice, or in another order."""
    rss_mib: Trend
    """Memory of the process."""
    descriptors: Trend
    """Its open descriptors."""
    threads: Trend
    """Its threads."""
    gpu_mib: tuple[float, float] | None
    """GPU memory that PyTorch holds, after the first tenth and at the end; None without a GPU."""
    gpu_used_mib: Trend | None
    """GPU memory in use by anyone, so with that of decoders, which PyTorch does not see; None without a GPU."""
    load: float
    """Load average of the machine's last minute."""

    def __str__(self) -> str:
        lines = [
            f"{self.model} on {self.device}, {self.sources} sources, decoder {self.decoder}, {self.seconds:.0f} s: "
            f"{self.frames:,} frames ({self.fewest:,} to {self.most:,} of a source), {self.out_of_turn} out of turn; "
            f"{self.detections:,} detections; load {self.load}",
            f"RSS, MiB: {self.rss_mib}",
            f"descriptors: {self.descriptors}",
            f"threads: {self.threads}",
        ]
        if self.gpu_mib is not None:
            lines.append("GPU memory of PyTorch, MiB: {:.1f} to {:.1f}".format(*self.gpu_mib))
            lines.append(f"GPU memory in use, MiB: {self.gpu_used_mib}")
        return "\n".join(lines)


def soak(
    seconds: float,
    *,
    sources: int = 32,
    size_hw: tuple[int, int] = (176, 312),
    config: EngineConfig | None = None,
) -> Soak:
    """Run sources side by side.

    Args:
        seconds: How long.
        sources: How many, at least 1.
        size_hw: (height, width) of the videos.
        config: How to run the model; None for the defaults.
    """
    check_count("sources", sources)
    machine, config = describe_machine(), config or EngineConfig()
    on_gpu = config.resolve_device().type == "cuda"
    with TemporaryDirectory() as folder:
        video = Path(folder) / "street.mp4"
        traffic.write_video(video, size_hw=size_hw, frames=_FRAMES, seed=7)
        streets = [traffic.sample(seed=seed, size_hw=size_hw).image for seed in range(4)]
        network = plant_network(SPECS["rf-detr-seg-nano"] if on_gpu else TINY, streets, survivors=_FOUND)
        with Model(network, config) as model:
            return _soak(model, video, machine, seconds, sources)


def _soak(model: Model, video: Path, machine: Any, seconds: float, sources: int) -> Soak:
    on_gpu = model.report().device.startswith("cuda")
    sampler = Sampler(os.getpid(), {"gpu_used_mib": partial(_used_mib, model)} if on_gpu else None)
    counts, detections, out_of_turn = [0] * sources, 0, 0
    gpu_mib: list[float] = []
    begin = time.monotonic()
    sampler.start()
    with closing(model.stream([itertools.repeat(str(video)) for _ in range(sources)], depth=_DEPTH)) as results:
        for frame, found in results:
            out_of_turn += frame.index != counts[frame.stream]
            counts[frame.stream] += 1
            detections += len(found)
            spent = time.monotonic() - begin
            if len(gpu_mib) < 1 and spent > seconds / 10:
                gpu_mib.append(_gpu_mib(model))
            if spent > seconds:
                break
        gpu_mib.append(_gpu_mib(model))
        sampler.stop()  # before the sources are closed
    return Soak(
        machine=machine,
        model=model.spec.name,
        device=model.report().device,
        decoder=model.config.decoder,
        sources=sources,
        seconds=round(time.monotonic() - begin, 1),
        frames=sum(counts),
        detections=detections,
        fewest=min(counts),
        most=max(counts),
        out_of_turn=out_of_turn,
        rss_mib=sampler.trend("rss_mib"),
        descriptors=sampler.trend("descriptors"),
        threads=sampler.trend("threads"),
        gpu_mib=(gpu_mib[0], gpu_mib[-1]) if on_gpu else None,
        gpu_used_mib=sampler.trend("gpu_used_mib") if on_gpu else None,
        load=round(os.getloadavg()[0], 2),
    )


def _gpu_mib(model: Model) -> float:
    """GPU memory that PyTorch holds; 0 without a GPU."""
    import torch

    device = model.report().device.partition(" ")[0]
    return torch.cuda.memory_reserved(device) / 2**20 if device.startswith("cuda") else 0.0


def _used_mib(model: Model) -> float:
    return gpu_mib(model) or 0.0


@with_config("device", "decoder")
def main(
    *,
    seconds: Annotated[float, typer.Option(help="How long.")] = 600.0,
    sources: Annotated[int, typer.Option(help="Sources side by side.")] = 32,
    size: SizeOption = "312",
    config: EngineConfig,
    out: ReportOption = None,
) -> None:
    """Run many sources for long, and show that nothing grows."""
    found = soak(seconds, sources=sources, size_hw=parse_size(size), config=config)
    if out is not None:
        write_json(out, asdict(found))
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
