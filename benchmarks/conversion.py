"""Time what follows the decoding of a video on the CPU: conversion to RGB, or planes copied as they are.

    python -m benchmarks.conversion --out benchmarks/results/conversion_cpu.json

A GPU could convert frames that the CPU decoded, as it does its own, from half the bytes: what a core would save.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import av
import av.video.reformatter
import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.command import ReportOption, SizesOption, start
from maskjet import traffic
from maskjet.checks import check_count
from maskjet.cli.options import parse_size, print_result
from maskjet.host import measuring
from maskjet.host.machine import describe_machine

_DRAWN, _SEED = 24, 7  # frames of a video
_BT709 = 1


@dataclass(frozen=True)
class ConversionCost:
    """What frames of one size cost a core; medians of CPU time."""

    size_hw: tuple[int, int]
    """(height, width) of the frames."""
    decoding_ms: float
    """Decoding alone."""
    rgb_ms: float
    """Conversion to RGB by swscale, as `open_source` does it."""
    nv12_ms: float
    """Conversion to NV12 by swscale."""
    planes_ms: float
    """The planes copied into one array as NV12, by NumPy."""


@dataclass(frozen=True)
class ConversionReport(measuring.MeasuredReport):
    """All sizes."""

    measurements: Sequence[ConversionCost]

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        rows: list[tuple[str, ...]] = [("size", "decoding ms", "to RGB", "to NV12", "planes copied", "could be saved")]
        for m in self.measurements:
            saved = (m.rgb_ms - min(m.nv12_ms, m.planes_ms)) / (m.decoding_ms + m.rgb_ms)
            times = (m.decoding_ms, m.rgb_ms, m.nv12_ms, m.planes_ms)
            rows.append((f"{m.size_hw[1]}×{m.size_hw[0]}", *(f"{ms:.3f}" for ms in times), f"{saved:.1%}"))
        return rows


def run(
    path: Path | None = None,
    *,
    sizes_hw: Sequence[tuple[int, int]] = tuple(traffic.SIZES_HW.values()),
    runs: int = 240,
) -> ConversionReport:
    """Time each way on drawn street videos, H.264 with B frames, each frame in every way.

    Args:
        path: A JSON file to write the report to.
        sizes_hw: (height, width) of the videos.
        runs: Frames of each size, at least 1.

    Raises:
        InputError: runs is less than 1.
    """
    check_count("runs", runs)
    with TemporaryDirectory() as folder:
        costs = [_measure(Path(folder, f"{n}.mp4"), size_hw, runs) for n, size_hw in enumerate(sizes_hw)]
    result = ConversionReport(describe_machine(), costs)
    result.write(path)
    return result


def _measure(path: Path, size_hw: tuple[int, int], runs: int) -> ConversionCost:
    traffic.write_video(path, size_hw=size_hw, frames=_DRAWN, seed=_SEED)
    reformat = av.video.reformatter.VideoReformatter().reformat
    ways: dict[str, Callable[[av.VideoFrame], object]] = {
        "rgb_ms": lambda frame: reformat(frame, format="rgb24", src_colorspace=_BT709, threads=1).to_ndarray(),
        "nv12_ms": lambda frame: reformat(frame, format="nv12", threads=1).to_ndarray(),
        "planes_ms": _copy_planes,
    }
    times: dict[str, list[float]] = {"decoding_ms": [], **{name: [] for name in ways}}
    while len(times["rgb_ms"]) < runs:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            began, frames = time.thread_time(), 0
            for frame in container.decode(stream):
                decoded = time.thread_time()
                frames += 1
                for name, convert in ways.items():
                    start_s = time.thread_time()
                    convert(frame)
                    times[name].append(1e3 * (time.thread_time() - start_s))
                began += time.thread_time() - decoded
            times["decoding_ms"].append(1e3 * (time.thread_time() - began) / frames)
    return ConversionCost(size_hw, **{name: statistics.median(ms) for name, ms in times.items()})


def _copy_planes(frame: av.VideoFrame) -> NDArray[np.uint8]:
    height, width = frame.height, frame.width
    made = np.empty((height * 3 // 2, width), dtype=np.uint8)
    luma, u, v = (np.asarray(plane, np.uint8).reshape(-1, plane.line_size) for plane in frame.planes)
    made[:height] = luma[:height, :width]
    chroma = made[height:].reshape(height // 2, width // 2, 2)
    chroma[..., 0], chroma[..., 1] = (plane[: height // 2, : width // 2] for plane in (u, v))
    return made


def main(
    *,
    size: SizesOption = None,
    runs: Annotated[int, typer.Option(help="Frames of each size.")] = 240,
    out: ReportOption = None,
) -> None:
    """Time conversion to RGB beside copies of the planes."""
    sizes_hw = [parse_size(each) for each in size or ("312", "720p", "1080p")]
    print_result(run(out, sizes_hw=sizes_hw, runs=runs), to_stdout=True)


if __name__ == "__main__":
    start(main)
