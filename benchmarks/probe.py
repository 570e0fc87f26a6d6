"""The tensor probe: differences between our network inputs and those of rfdetr and OpenCV, value by value.

Two oracles, neither of them our code: PyTorch's F.interpolate on the device, called through torchvision as `predict` of
rfdetr 1.11.2 does, and OpenCV's cv2.resize on the host; both bilinear without antialias. They differ from each other,
because the first blends floats and the second blends bytes in fixed point; this difference is the yardstick.

    python -m benchmarks.probe --count 60 --size 720p --picture probe.png
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import torch
import typer
from numpy.typing import NDArray

from benchmarks import chart
from benchmarks.command import ReportOption, SizeOption, start
from benchmarks.probe_picture import Scene, draw
from benchmarks.streets import FIRST_SEED, Streets
from maskjet.cli.options import ModelOption, WeightsOption, parse_size, print_result, progress, with_config
from maskjet.config import EngineConfig
from maskjet.errors import InputError, UnsupportedError
from maskjet.host import measuring
from maskjet.host.extras import require
from maskjet.host.machine import describe_machine
from maskjet.model import read_network
from maskjet.ops.preprocess import RECORD
from maskjet.sources.frames import open_source
from maskjet.sources.images import to_image
from maskjet.spec import ModelSpec

Prepare = Callable[[torch.Tensor], torch.Tensor]
"""Turns a frame, uint8 [H, W, 3] RGB, into the network's input, float32 [3, h, w] on any device."""

_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
BUCKETS = (
    *("0", "1", "2"),
    *(f"{low + 1}-{high}" for low, high in pairwise(_BOUNDS[2:])),
    f">{_BOUNDS[-1]}",
)
"""Bins of the histograms: distances in ULPs, ascending."""


@dataclass(frozen=True)
class InputDifference:
    """Difference between one variant's network inputs and one oracle's, over all images."""

    variant: str
    """Implementation of `ops.preprocess`, followed by ", cv2" if it resamples as OpenCV does; or the other oracle."""
    oracle: str
    """"F.interpolate" or "cv2.resize"."""
    images: int
    """Number of images compared."""
    values: int
    """Number of values compared: three channels of each pixel of each network input."""
    max_difference: float
    """Largest absolute difference, in units of the normalised input; infinite if only one of two values is finite."""
    mean_difference: float
    """Mean absolute difference, in units of the normalised input."""
    equal: float
    """Share of the values that are equal bit for bit, 0..1."""
    ulps: Mapping[str, int]
    """Number of values by distance in float32 ULPs (see `ulps_apart`), one key per item of `BUCKETS`. ULPs shrink
    towards zero: a distance of many may be a tiny difference there."""
    largest_at: tuple[int, int, int] | None
    """(image, y, x), all from 0, of the largest difference (the first of equal ones); None without differences."""


@dataclass(frozen=True)
class ProbeReport(measuring.MeasuredReport):
    """Differences of all variants from both oracles, and between the oracles."""

    measurements: Sequence[InputDifference]
    """Each variant compared with both oracles; last, as the yardstick, the oracles with each other."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per variant and oracle."""
        header = ("variant", "oracle", "images", "Δ max", "Δ mean", "bit-equal", "≤ 1 ULP", "≤ 8 ULPs", "farthest")
        return [header, *map(_as_row, self.measurements)]


def _as_row(m: InputDifference) -> tuple[str, ...]:
    counts = list(m.ulps.values())
    farthest = [bucket for bucket, count in m.ulps.items() if count][-1]
    near, nearby = (sum(counts[: BUCKETS.index(bucket) + 1]) / m.values for bucket in ("1", "5-8"))
    return (
        *(m.variant, m.oracle, str(m.images)),
        *(f"{m.max_difference:.1e}", f"{m.mean_difference:.1e}"),
        *(_as_percentage(share) for share in (m.equal, near, nearby)),
        f"{farthest} ULP" + ("" if farthest == "1" else "s"),
    )


def _as_percentage(share: float) -> str:
    """Format a share, truncated instead of rounded, so that 100 % means all."""
    return f"{np.floor(1e4 * share) / 100:.2f} %"


def probe(
    images: Iterable[NDArray[np.uint8]],
    *,
    spec: ModelSpec,
    device: torch.device,
    picture: Path | None = None,
    on_progress: Callable[[], object] = lambda: None,
) -> ProbeReport:
    """Compare each implementation's network inputs with both oracles'.

    Every implementation that runs on the device is compared with both of its filters, its output filled with NaN
    first. Frames are stretched to the input size.

    Args:
        images: uint8 [H, W, 3] RGB, of any sizes, at least one; read one at a time.
        spec: Gives the input's size, mean and standard deviation.
        device: Device of the frames and of `F.interpolate`. On a CPU, PyTorch's result differs between one thread and
            several; the number of threads is left as it is.
        picture: A PNG to write, which shows where the inputs differ for the image with the largest difference.
        on_progress: Called after each image.

    Returns:
        The report, which prints as a table. Its notes name the implementations that can't run on the device.

    Raises:
        InputError: There is no image, or one is not as above.
        MissingDependencyError: A picture is asked for, but matplotlib is not installed.
    """
    if picture is not None:
        chart.check()
    variants, notes = _find_variants(spec, device)
    oracles = {"F.interpolate": partial(_interpolate, spec=spec), "cv2.resize": partial(_resize, spec=spec)}
    measurements, scene = _compare(images, variants, oracles, device=device, on_progress=on_progress)
    found = ProbeReport(describe_machine(), measurements, notes)
    if picture is not None:
        draw(scene, spec, found.machine, picture)
    return found


def _find_variants(spec: ModelSpec, device: torch.device) -> tuple[dict[str, Prepare], list[str]]:
    """Find the implementations that can run on a device, once per filter, and the reasons why the others can't."""
    sample = torch.empty((1, 1, 1, 3), dtype=torch.uint8, device=device)
    variants: dict[str, Prepare] = {}
    notes = []
    for name in RECORD.variants:
        try:
            RECORD.choose(name, sample)
        except UnsupportedError as error:
            notes.append(f"{name} left out: {error}")
        else:
            variants[name] = partial(_preprocess, spec=spec, implementation=name, resample="bilinear")
            variants[f"{name}, cv2"] = partial(_preprocess, spec=spec, implementation=name, resample="cv2")
    return variants, notes


def _preprocess(frame: torch.Tensor, *, spec: ModelSpec, implementation: str, resample: str) -> torch.Tensor:
    size = spec.input_hw
    out = torch.full((1, 3, *size), torch.nan, device=frame.device)
    RECORD.public(frame, out, size=size, mean=spec.mean, std=spec.std, resample=resample, implementation=implementation)
    return out[0]


def _interpolate(frame: torch.Tensor, *, spec: ModelSpec) -> torch.Tensor:
    """Preprocess with torchvision as rfdetr's `predict` does; torchvision's resize calls F.interpolate."""
    transforms = require("torchvision.transforms.functional", extra="bench", purpose="The tensor probe")
    image = transforms.to_tensor(frame.cpu().numpy()).to(frame.device)
    resized = transforms.resize(image, [*spec.input_hw], antialias=False)
    made: torch.Tensor = transforms.normalize(resized, spec.mean, spec.std)
    return made


def _resize(frame: torch.Tensor, *, spec: ModelSpec) -> torch.Tensor:
    """Resize bytes with OpenCV, then normalise in NumPy, on the host."""
    resized = cv2.resize(frame.cpu().numpy(), spec.input_hw[::-1], interpolation=cv2.INTER_LINEAR)
    mean, std = (np.array(values, dtype=np.float32) for values in (spec.mean, spec.std))
    normalised = (resized.astype(np.float32) / np.float32(255) - mean) / std
    return torch.from_numpy(normalised).permute(2, 0, 1)


def _compare(
    images: Iterable[NDArray[np.uint8]],
    variants: Mapping[str, Prepare],
    oracles: Mapping[str, Prepare],
    *,
    device: torch.device,
    on_progress: Callable[[], object] = lambda: None,
) -> tuple[list[InputDifference], Scene]:
    """Compare variants with oracles, and oracles with each other; also return the image that differs most."""
    pairs = [*((variant, oracle) for variant in variants for oracle in oracles), *combinations(oracles, 2)]
    tallies = {pair: _Tally() for pair in pairs}
    largest, scene = -1.0, None
    for index, given in enumerate(images):
        image = to_image(given, f"images[{index}]")
        frame = torch.tensor(image, device=device)
        inputs = {name: prepare(frame).to(device) for name, prepare in {**oracles, **variants}.items()}
        maps = {(one, other): tallies[one, other].add(index, inputs[one], inputs[other]) for one, other in pairs}
        here = max(float(each.max()) for each in maps.values())
        if here > largest:
            largest, scene = here, Scene(image, index, {pair: each.cpu().numpy() for pair, each in maps.items()})
        on_progress()
    if scene is None:
        raise InputError("images must hold at least one, got none.")
    return [tally.as_measurement(*pair) for pair, tally in tallies.items()], scene


@dataclass
class _Tally:
    """Differences between one variant and one oracle, over the images so far."""

    images: int = 0
    values: int = 0
    equal: int = 0
    total: float = 0.0
    largest: float = 0.0
    largest_at: tuple[int, int, int] | None = None
    counts: torch.Tensor = field(default_factory=lambda: torch.zeros(len(BUCKETS), dtype=torch.int64))

    def add(self, index: int, actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Add one image's inputs, float32 [3, h, w] on one device.

        Returns:
            The largest difference over the channels, float64 [h, w].
        """
        distance = ulps_apart(actual, expected)
        # A difference with NaN, and inf - inf, is NaN: infinite here, then 0 where both values are the same.
        difference = (actual.double() - expected.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
        difference = torch.where(distance == 0, 0.0, difference)
        where = difference.amax(dim=0)
        place = int(where.argmax())
        largest = float(where.flatten()[place])
        self.images += 1
        self.values += distance.numel()
        self.equal += int((actual.view(torch.int32) == expected.view(torch.int32)).sum())
        self.total += float(difference.sum())
        if largest > self.largest:
            self.largest, self.largest_at = largest, (index, *divmod(place, where.shape[1]))
        buckets = torch.bucketize(distance, torch.tensor(_BOUNDS, device=distance.device))
        self.counts += torch.bincount(buckets.flatten(), minlength=len(BUCKETS)).cpu()
        return where

    def as_measurement(self, variant: str, oracle: str) -> InputDifference:
        return InputDifference(
            variant=variant,
            oracle=oracle,
            images=self.images,
            values=self.values,
            max_difference=self.largest,
            mean_difference=self.total / self.values,
            equal=self.equal / self.values,
            ulps=dict(zip(BUCKETS, self.counts.tolist(), strict=True)),
            largest_at=self.largest_at,
        )


def ulps_apart(values: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Count the steps in float32 numbers from one value to the other, element by element.

    +0 and -0 are one number, infinity follows the largest finite number, and two NaNs are 0 apart.

    Args:
        values: float32.
        others: float32, of the same shape and device.

    Returns:
        int64, at least 0; 2**32, more than any other distance, where only one of the two is NaN.

    Example:
        >>> ulps_apart(torch.tensor([1.0, -0.0, 1e-45]), torch.tensor([1.0 + 2**-22, 0.0, -1e-45]))
        tensor([2, 0, 2])
    """
    distance = (_ordered(values) - _ordered(others)).abs()
    distance = distance.masked_fill(values.isnan() ^ others.isnan(), 2**32)
    return distance.masked_fill(values.isnan() & others.isnan(), 0)


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Map float32 to int64 in the same order: from sign and magnitude to two's complement."""
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@with_config("device")
def main(
    *,
    images: Annotated[str | None, typer.Option(help="Image, folder, glob or video; if not given, streets.")] = None,
    count: Annotated[int, typer.Option(help="Number of drawn streets.")] = 10,
    size: SizeOption = "720p",
    seed: Annotated[int, typer.Option(help="Seed of the first drawn street.")] = FIRST_SEED,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    config: EngineConfig,
    out: ReportOption = None,
    picture: Annotated[Path | None, typer.Option(help="A .png to write: where the tensors differ.")] = None,
) -> None:
    """Compare each implementation's network inputs with those by F.interpolate and by cv2.resize."""
    pixels: Iterable[NDArray[np.uint8]] = Streets(count, parse_size(size), seed).read()
    if images is not None:
        pixels = (frame.image for frame in open_source(images))
    spec = read_network(model, weights).spec
    resolved = config.resolve_device()
    with progress("probing", None if images else count) as advance:
        found = probe(pixels, spec=spec, device=resolved, picture=picture, on_progress=advance)
    found.write(out)
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
