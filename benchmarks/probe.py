"""The tensor probe: how far our preprocessed network inputs are from those of the projects we claim to equal.

Two oracles, none of them our code: PyTorch's F.interpolate on the device, through the functions of torchvision that
`predict` of rfdetr 1.11.2 calls, and OpenCV's cv2.resize on the host, both bilinear without antialias. They don't agree
with each other: the one blends floats, the other bytes in fixed point. How far they are apart is the yardstick for all
else.

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
from maskjet.cli.options import ModelOption, WeightsOption, print_result, progress, with_config
from maskjet.cli.parity import CocoDirOption, CountOption, ImagesOption, SeedOption, choose_images
from maskjet.config import EngineConfig
from maskjet.errors import InputError, UnsupportedError
from maskjet.extras import require
from maskjet.media.images import to_image
from maskjet.model import read_network
from maskjet.ops.preprocess import RECORD
from maskjet.parity import FIRST_SEED, report
from maskjet.parity.machine import describe_machine
from maskjet.spec import ModelSpec

Prepare = Callable[[torch.Tensor], torch.Tensor]
"""Frame, uint8 [H, W, 3] RGB, to network input, float32 [3, h, w] on any device."""

_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
BUCKETS = (
    *("0", "1", "2"),
    *(f"{low + 1}-{high}" for low, high in pairwise(_BOUNDS[2:])),
    f">{_BOUNDS[-1]}",
)
"""Bins of the histograms: distances in ULPs, ascending."""


@dataclass(frozen=True)
class InputDifference:
    """One variant against one oracle, over all images."""

    variant: str
    """An implementation of `ops.preprocess`, ", cv2" appended if it resamples as OpenCV does; or the other oracle."""
    oracle: str
    """"F.interpolate" or "cv2.resize"."""
    images: int
    """Number of images compared."""
    values: int
    """Number of values compared: three channels of each pixel of each network input."""
    max_difference: float
    """Largest absolute difference, in units of the normalised input; infinite where only one of the two is a number."""
    mean_difference: float
    """Mean absolute difference, in units of the normalised input."""
    equal: float
    """Share of the values that are equal bit for bit, 0..1."""
    ulps: Mapping[str, int]
    """Values by their distance in float32 ULPs, as `ulps_apart` counts, a key for each of `BUCKETS`. Near zero an ULP
    is tiny, so that a value there may be far off in ULPs and close in units."""
    largest_at: tuple[int, int, int] | None
    """(image, y, x), all from 0, of the first largest difference; None if there is none."""


@dataclass(frozen=True)
class ProbeReport(report.MeasuredReport):
    """All variants against both oracles, and the oracles against each other."""

    measurements: Sequence[InputDifference]
    """Each variant against both oracles; last, as a yardstick, one oracle against the other."""

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
    """Compare the network inputs that our implementations make with both oracles'.

    Every implementation that can run on the device is probed with both of its filters; its output is filled with NaN
    first. Frames are stretched to the input.

    Args:
        images: uint8 [H, W, 3] RGB, of any sizes, at least one; read one at a time.
        spec: Says the input's size, mean and standard deviation.
        device: Device of the frames and of `F.interpolate` runs. On a CPU PyTorch's result depends on whether it
            has one thread or several; implementations and oracle are run on as many as it has.
        picture: A PNG to write: where the inputs differ, for the image with the largest difference.
        on_progress: Called after each image.

    Returns:
        The report, which prints as a table. Its notes name what can't run on the device.

    Raises:
        InputError: There is no image, or one is not as above.
        MissingDependencyError: A picture is asked for, and matplotlib is not installed.
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
    """The implementations that can run on a device, once for each filter, and why the others can't."""
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
    size = (spec.input_size, spec.input_size)
    out = torch.full((1, 3, *size), torch.nan, device=frame.device)
    RECORD.public(frame, out, size=size, mean=spec.mean, std=spec.std, resample=resample, implementation=implementation)
    return out[0]


def _interpolate(frame: torch.Tensor, *, spec: ModelSpec) -> torch.Tensor:
    """Torchvision's own functions as rfdetr's `predict` calls them; its resize ends in F.interpolate."""
    transforms = require("torchvision.transforms.functional", extra="bench", purpose="The tensor probe")
    image = transforms.to_tensor(frame.cpu().numpy()).to(frame.device)
    resized = transforms.resize(image, [spec.input_size, spec.input_size], antialias=False)
    made: torch.Tensor = transforms.normalize(resized, spec.mean, spec.std)
    return made


def _resize(frame: torch.Tensor, *, spec: ModelSpec) -> torch.Tensor:
    """Bytes through OpenCV, then the same normalisation in NumPy, on the host."""
    resized = cv2.resize(frame.cpu().numpy(), (spec.input_size, spec.input_size), interpolation=cv2.INTER_LINEAR)
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
    """Variants against oracles, oracles against each other; and the image with the largest difference of all."""
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
    """One variant against one oracle, over the images so far."""

    images: int = 0
    values: int = 0
    equal: int = 0
    total: float = 0.0
    largest: float = 0.0
    largest_at: tuple[int, int, int] | None = None
    counts: torch.Tensor = field(default_factory=lambda: torch.zeros(len(BUCKETS), dtype=torch.int64))

    def add(self, index: int, actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Take in an image's inputs, float32 [3, h, w] of one device.

        Returns:
            The largest difference over the channels, float64 [h, w].
        """
        distance = ulps_apart(actual, expected)
        # infinity less infinity is NaN, as is what differs by being one
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
    """How many float32 numbers lie from one value to the other, element by element.

    The two zeros are one number; infinity follows the largest finite one; NaN is no distance from NaN.

    Args:
        values: float32.
        others: float32, of the same shape and device.

    Returns:
        int64, at least 0; where one of the two is NaN 2**32, which is more than any other.

    Example:
        >>> ulps_apart(torch.tensor([1.0, -0.0, 1e-45]), torch.tensor([1.0 + 2**-22, 0.0, -1e-45]))
        tensor([2, 0, 2])
    """
    distance = (_ordered(values) - _ordered(others)).abs()
    distance = distance.masked_fill(values.isnan() ^ others.isnan(), 2**32)
    return distance.masked_fill(values.isnan() & others.isnan(), 0)


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """The bits of float32, sign and magnitude, as int64 in two's complement, which are in the order of the values."""
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@with_config("device")
def main(
    *,
    images: ImagesOption = None,
    coco_dir: CocoDirOption = None,
    count: CountOption = 10,
    size: SizeOption = "720p",
    seed: SeedOption = FIRST_SEED,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    config: EngineConfig,
    out: ReportOption = None,
    picture: Annotated[Path | None, typer.Option(help="A .png of where the tensors differ.")] = None,
) -> None:
    """Compare the network's input as each implementation makes it with F.interpolate's and cv2.resize's."""
    chosen = choose_images(images, coco_dir, count, size, seed)
    spec = read_network(model, weights).spec
    resolved = config.resolve_device()
    with progress("probing", chosen.length) as advance:
        pixels = (image for _, image in chosen.read())
        found = probe(pixels, spec=spec, device=resolved, picture=picture, on_progress=advance)
    found.write(out)
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
