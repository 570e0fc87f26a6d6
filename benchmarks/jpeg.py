"""Time decoding JPEGs by OpenCV on the CPU and by nvJPEG on the GPU, which torchvision calls, and compare the pixels.

    python -m benchmarks.jpeg --out benchmarks/results/jpeg_h200.json

A service answers with `predict`'s results only if its pixels are the same; nvJPEG rounds otherwise, so the detections
on both are compared, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from benchmarks.command import ReportOption, SizesOption, start
from benchmarks.contest import median_ms
from benchmarks.serve import draw_images
from maskjet import measured
from maskjet.cli.options import ModelOption, WeightsOption, parse_size, print_result
from maskjet.errors import UnsupportedError
from maskjet.machine import describe_machine
from maskjet.media.images import decode_image
from maskjet.model import Model, load
from maskjet.parity.pair import compare

_BATCH = 8  # as the service's on a GPU


@dataclass(frozen=True)
class Likeness:
    """How like OpenCV's a decoder's images are."""

    largest_difference: int
    """Largest difference of a byte."""
    equal_bytes: float
    """Share of bytes that are equal."""
    images: int
    """Images compared."""
    equal_answers: int
    """Images on which the model finds exactly the same."""
    matched: float
    """Share of detections that have a partner of the same class."""


@dataclass(frozen=True)
class DecodeCost:
    """What one way to decode takes for one size."""

    size_hw: tuple[int, int]
    """(height, width) of the images."""
    decoder: str
    """What decodes."""
    p50_ms: float
    """Median time of a call, until the pixels can be used."""
    per_second: float
    """Images per second: of a call's images, or of all threads."""
    likeness: Likeness | None
    """Compared with OpenCV's images; None for itself."""


@dataclass(frozen=True)
class JpegReport(measured.MeasuredReport):
    """All decoders for all sizes."""

    measurements: Sequence[DecodeCost]

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        rows: list[tuple[str, ...]] = [
            ("size", "decoder", "p50 ms", "images/s", "off by", "equal bytes", "equal answers", "matched")
        ]
        for m in self.measurements:
            size, like = f"{m.size_hw[1]}×{m.size_hw[0]}", m.likeness
            found = ("-",) * 4
            if like is not None:
                answers = f"{like.equal_answers} of {like.images}"
                found = (str(like.largest_difference), f"{like.equal_bytes:.2%}", answers, f"{like.matched:.2%}")
            rows.append((size, m.decoder, f"{m.p50_ms:.2f}", f"{m.per_second:.0f}", *found))
        return rows


def run(
    path: Path | None = None,
    *,
    model: str = "demo",
    weights: Path | None = None,
    sizes_hw: Sequence[tuple[int, int]] = ((176, 312), (720, 1280), (1080, 1920)),
    runs: int = 200,
) -> JpegReport:
    """Time and compare the decoders.

    Args:
        path: A JSON file to write the report to.
        model: A model of `maskjet.load`, which detects on the pixels.
        weights: Its weights file.
        sizes_hw: (height, width) of the images, which are drawn streets.
        runs: Timed calls of each decoder, at least 1.

    Raises:
        InputError: runs is less than 1.
        UnsupportedError: There is no GPU.
    """
    measured.check_runs(runs)
    if not torch.cuda.is_available():
        raise UnsupportedError("nvJPEG decodes on NVIDIA GPUs, there is none.")
    machine, costs = describe_machine(), list[DecodeCost]()
    with TemporaryDirectory() as folder, load(model, weights=weights, device="cuda") as loaded:
        for size_hw in sizes_hw:
            bodies = [file.read_bytes() for file in draw_images(Path(folder), size_hw)]
            costs += _measure(loaded, size_hw, bodies, runs)
    result = JpegReport(machine, costs)
    result.write(path)
    return result


def _measure(model: Model, size_hw: tuple[int, int], bodies: Sequence[bytes], runs: int) -> list[DecodeCost]:
    like, cores = _compare(model, bodies), len(os.sched_getaffinity(0))
    by_opencv, number = partial(_by_opencv, bodies), len(bodies)
    rate = _threads_rate(by_opencv, cores, runs)
    costs = [DecodeCost(size_hw, f"OpenCV, {cores} threads", 1000 * cores / rate, rate, None)]
    for decoder, count, call, likeness in (
        ("OpenCV", 1, by_opencv, None),
        ("nvJPEG", 1, lambda n: _by_nvjpeg([bodies[n % number]]), like),
        (f"nvJPEG, {_BATCH} in a batch", _BATCH, lambda n: _by_nvjpeg(_some(bodies, n)), like),
    ):
        p50_ms = median_ms(call, runs)
        costs.append(DecodeCost(size_hw, decoder, p50_ms, 1000 * count / p50_ms, likeness))
    return costs


def _compare(model: Model, bodies: Sequence[bytes]) -> Likeness:
    ours = [decode_image(body, "it") for body in bodies]
    theirs = [image.permute(1, 2, 0).contiguous().cpu().numpy() for image in _by_nvjpeg(bodies)]
    expected, actual = model.predict(ours), model.predict(theirs)
    off = [np.abs(a.astype(np.int16) - b) for a, b in zip(ours, theirs, strict=True)]
    pairs = [compare(each, other)[0] for each, other in zip(expected, actual, strict=True)]
    return Likeness(
        largest_difference=int(max(each.max() for each in off)),
        equal_bytes=float(np.mean([np.mean(each == 0) for each in off])),
        images=len(ours),
        equal_answers=sum(a.as_dict() == b.as_dict() for a, b in zip(expected, actual, strict=True)),
        matched=sum(pair.matched for pair in pairs) / max(1, sum(map(len, expected))),
    )


def _some(bodies: Sequence[bytes], number: int) -> list[bytes]:
    return [bodies[(number * _BATCH + each) % len(bodies)] for each in range(_BATCH)]


def _by_opencv(bodies: Sequence[bytes], number: int) -> NDArray[np.uint8]:
    return decode_image(bodies[number % len(bodies)], "it")


def _by_nvjpeg(bodies: Sequence[bytes]) -> list[torch.Tensor]:
    """Decode on the GPU and wait: uint8 [3, H, W] each, RGB."""
    from torchvision.io import ImageReadMode, decode_jpeg

    data = [torch.frombuffer(bytearray(body), dtype=torch.uint8) for body in bodies]
    images: list[torch.Tensor] = decode_jpeg(data, mode=ImageReadMode.RGB, device="cuda")
    torch.cuda.synchronize()
    return images


def _threads_rate(call: Callable[[int], Any], threads: int, runs: int) -> float:
    """Calls per second of several threads."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(call, range(threads)))
        begin = time.perf_counter()
        list(pool.map(call, range(runs * threads)))
        return runs * threads / (time.perf_counter() - begin)


def main(
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    size: SizesOption = None,
    runs: Annotated[int, typer.Option(help="Timed calls of each decoder.")] = 200,
    out: ReportOption = None,
) -> None:
    """Time decoding JPEGs on the CPU and on the GPU."""
    sizes_hw = [parse_size(each) for each in size or ("312", "720p", "1080p")]
    print_result(run(out, model=model, weights=weights, sizes_hw=sizes_hw, runs=runs), to_stdout=True)


if __name__ == "__main__":
    start(main)
