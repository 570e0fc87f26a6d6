"""Compare the GPU's JPEG decoder with libjpeg-turbo: bytes on files of many kinds, then detections on drawn streets.

    python -m benchmarks.jpegs --out benchmarks/results/jpegs_h200.json

Every file is decoded twice on the GPU, among other neighbours each time: pixels of another image would differ. Without
a GPU it is only told which decoder takes a file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import numpy as np
import torch
import typer

from benchmarks.command import OnlyOption, ReportOption, SizeOption, check_names, start
from benchmarks.jpeg_kinds import DAMAGED, Image, JPEGFile, encode, make_files
from benchmarks.streets import FIRST_SEED, Streets
from benchmarks.variants import THRESHOLD
from maskjet import traffic
from maskjet.checks import check_count
from maskjet.cli.options import ModelOption, WeightsOption, parse_size, print_result, with_config
from maskjet.config import EngineConfig
from maskjet.detections import coco_annotations
from maskjet.errors import MaskjetError, SourceError, UnsupportedError, first_line
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.model import Model, read_network
from maskjet.parity import coco
from maskjet.parity.pair import Pairing, pair
from maskjet.sources.images import decode_image
from maskjet.sources.nvjpeg import JPEGDecoder, jpeg_decoder
from maskjet.sources.plain_jpegs import PlainJPEG, check_jpeg

PARTS = ("bytes", "detections")
"""What can be compared."""
GROUP = 32
"""Files that the GPU decodes in one call."""
_STREETS = 8  # drawn, then resized to all sizes
_NEAR = 0.01  # confidence of paired detections
_SURE = 0.5  # confidence from which detections count in the second figure
_QUALITIES = (75, 85, 92, 95)  # of the streets on which detections are compared
_BATCH = 16


@dataclass
class KindLikeness:
    """How like libjpeg-turbo's the GPU's pixels are, of one kind of file."""

    kind: str
    """How the files were made."""
    files: int = 0
    """Number of files."""
    on_gpu: int = 0
    """Files that the GPU decoded."""
    on_cpu: dict[str, int] = field(default_factory=dict)
    """Files that the CPU decodes or refuses, by the reason."""
    refused: int = 0
    """Files that the CPU refuses; of these none may be on the GPU."""
    wrongly_taken: int = 0
    """Files that the GPU decoded and the CPU refuses, or decodes to another size."""
    unstable: int = 0
    """Files that the GPU decoded to other bytes among other neighbours."""
    equal_files: int = 0
    """Files of which each byte is equal."""
    equal_bytes: float | None = None
    """Share of bytes that are equal, of the files on the GPU; None if there are none."""
    largest: int | None = None
    """Largest difference of a byte; None if none is on the GPU."""


@dataclass(frozen=True)
class Likeness:
    """How like each other the detections are on images decoded by the CPU and by the GPU."""

    model: str
    """Name of the model."""
    images: int
    """Number of drawn streets."""
    size_hw: tuple[int, int]
    """(height, width) of the streets."""
    detections: int
    """Detections on the CPU's pixels with a confidence above 0.05."""
    paired: float
    """Share of all detections that are paired, with confidences at most 0.01 apart, 0..1."""
    paired_sure: float
    """The same for detections with a confidence of at least 0.5."""
    equal_masks: float
    """Share of pairs whose masks are equal, 0..1."""
    ap: Mapping[str, float | None]
    """mAP on the CPU's pixels, by "bbox" and "segm"; None if there is nothing to score."""
    delta_ap: Mapping[str, float | None]
    """mAP on the GPU's pixels minus that."""

    def __str__(self) -> str:
        size = f"{self.size_hw[1]} × {self.size_hw[0]}"
        scores = ", ".join(f"{kind} {_signed(self.delta_ap[kind])} of {_plain(self.ap[kind])}" for kind in self.ap)
        return (
            f"{self.model} on {self.images} streets of {size}, {self.detections:,} detections: {self.paired:.3%} are "
            f"paired within {_NEAR} of confidence, {self.paired_sure:.3%} of those from {_SURE} on; masks equal in "
            f"{self.equal_masks:.1%} of the pairs; mAP: {scores}"
        )


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.5f}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


@dataclass(frozen=True)
class JpegsReport(measuring.MeasuredReport):
    """All comparisons; measurements are `KindLikeness`."""

    detections: Sequence[Likeness] = ()
    """Comparisons of detections."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per kind of file, and one of all but damaged ones."""
        head = ("kind", "files", "on the GPU", "equal files", "equal bytes", "off by", "unstable", "on the CPU")
        return [head, *map(_as_row, self.measurements)]

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *map(str, self.detections)])


def _as_row(m: KindLikeness) -> tuple[str, ...]:
    share = "-" if m.equal_bytes is None else f"{np.floor(1e6 * m.equal_bytes) / 1e4:.4f} %"
    reasons = ", ".join(f"{count} {reason}" for reason, count in m.on_cpu.items()) or "-"
    if m.refused:
        reasons += f"; {m.refused} refused"
    if m.wrongly_taken:
        reasons += f"; {m.wrongly_taken} WRONGLY on the GPU"
    largest = "-" if m.largest is None else str(m.largest)
    return (m.kind, str(m.files), str(m.on_gpu), str(m.equal_files), share, largest, str(m.unstable), reasons)


def load_decoder(device: torch.device) -> JPEGDecoder:
    """The decoder of a GPU.

    Raises:
        UnsupportedError: There is no GPU, or none that decodes JPEGs.
        MissingDependencyError: The decoder's library is not installed.
    """
    if device.type != "cuda":
        raise UnsupportedError(f"JPEGs are decoded by NVIDIA GPUs, the device is {device}.")
    return jpeg_decoder(str(device))


def run(
    path: Path | None = None,
    *,
    model: str = "demo",
    weights: Path | None = None,
    config: EngineConfig | None = None,
    size_hw: tuple[int, int] = (720, 1280),
    count: int = 500,
    only: Sequence[str] = (),
) -> JpegsReport:
    """Compare bytes and detections.

    Args:
        path: A JSON file to write the report to, after each part.
        model: A model of `maskjet.load` that was trained on the classes of drawn streets.
        weights: Its weights file.
        config: How to run it; its `decoder` is not looked at.
        size_hw: (height, width) of the streets on which detections are compared.
        count: Number of those streets, at least 1.
        only: Of `PARTS`; empty for all.

    Raises:
        InputError: An argument is not as above.
    """
    check_names(only, PARTS)
    check_count("count", count)
    config = config or EngineConfig()
    device, notes = config.resolve_device(), list[str]()
    found = JpegsReport(describe_machine(), [], notes)
    if not only or "bytes" in only:
        streets = [traffic.sample(seed=FIRST_SEED + seed, size_hw=(480, 640)).image for seed in range(_STREETS)]
        found = replace(found, measurements=compare_bytes(make_files(streets, notes), device, notes))
        found.write(path)
    if not only or "detections" in only:
        try:
            likeness = compare_detections(model, weights, config, Streets(count, size_hw, FIRST_SEED))
            found = replace(found, detections=[likeness])
        except MaskjetError as error:
            notes.append(f"detections left out: {first_line(error)}")
    found.write(path)
    return found


def compare_bytes(files: Sequence[JPEGFile], device: torch.device, notes: list[str]) -> list[KindLikeness]:
    """Decode files on the CPU and, those that are found whole, on the GPU.

    Returns:
        One result per kind, and last that of all files but damaged ones, on whose pixels decoders need not agree.
    """
    checked = [check_jpeg(each.data) for each in files]
    plain = {number: found for number, found in enumerate(checked) if not isinstance(found, str)}
    decoded: dict[int, tuple[torch.Tensor | None, torch.Tensor | None]] = {}
    try:
        decoder = load_decoder(device)
    except MaskjetError as error:
        notes.append(f"decoding on the GPU left out: {first_line(error)}")
    else:
        decoded = _decode_twice(decoder, plain)
    kinds = {each.kind: KindLikeness(each.kind) for each in files}
    total = KindLikeness("all but damaged")
    tallies: dict[str, list[int]] = {name: [] for name in (*kinds, total.kind)}  # bytes, and equal ones, in turn
    for number, file in enumerate(files):
        found = checked[number]
        reason = found if isinstance(found, str) else None
        if reason is None and decoded and decoded[number][0] is None:
            reason = "refused by the GPU"
        for likeness in (kinds[file.kind], *([] if file.kind.startswith(DAMAGED) else [total])):
            _add(likeness, tallies[likeness.kind], file, reason, decoded.get(number, (None, None)))
    for likeness in (*kinds.values(), total):
        sizes, equal = tallies[likeness.kind][::2], tallies[likeness.kind][1::2]
        likeness.equal_bytes = sum(equal) / sum(sizes) if sizes else None
    return [*kinds.values(), total]


def _decode_twice(
    decoder: JPEGDecoder, plain: Mapping[int, PlainJPEG]
) -> dict[int, tuple[torch.Tensor | None, torch.Tensor | None]]:
    """Decode files in groups, then once more in another order; pixels on the host, None where the GPU refuses."""
    orders = [list(plain), list(plain)]
    random.Random(0).shuffle(orders[1])
    both: list[dict[int, torch.Tensor | None]] = []
    for order in orders:
        pixels: dict[int, torch.Tensor | None] = {}
        for begin in range(0, len(order), GROUP):
            group = order[begin : begin + GROUP]
            for number, image in zip(group, decoder.decode([plain[each] for each in group]), strict=True):
                pixels[number] = None if image is None else image.cpu()
        both.append(pixels)
    return {number: (both[0][number], both[1][number]) for number in plain}


def _add(
    likeness: KindLikeness,
    tally: list[int],
    file: JPEGFile,
    reason: str | None,
    decoded: tuple[torch.Tensor | None, torch.Tensor | None],
) -> None:
    """Add a file to the comparison of its kind."""
    likeness.files += 1
    try:
        expected: Image | None = decode_image(file.data, "it")
    except SourceError:
        expected = None
        likeness.refused += 1
    if reason is not None:
        likeness.on_cpu = dict(Counter(likeness.on_cpu) + Counter([reason]))
        return
    likeness.on_gpu += 1
    if expected is None:
        likeness.wrongly_taken += 1
        return
    first, second = decoded
    if first is None:  # no GPU
        return
    likeness.unstable += second is None or not torch.equal(first, second)
    if first.shape != expected.shape:
        likeness.wrongly_taken += 1
        return
    off = _difference(first.numpy(), expected)
    tally += [off.size, int((off == 0).sum())]
    likeness.equal_files += not off.any()
    likeness.largest = max(likeness.largest or 0, int(off.max()))


def _difference(one: Image, other: Image) -> Image:
    """Absolute difference of bytes."""
    return np.maximum(one, other) - np.minimum(one, other)


def compare_detections(model: str, weights: Path | None, config: EngineConfig, streets: Streets) -> Likeness:
    """Detect on the files of drawn streets, decoded by the CPU and by the GPU, and pair and score what is found.

    Raises:
        UnsupportedError: There is no GPU.
    """
    if config.resolve_device().type != "cuda":
        raise UnsupportedError("JPEGs are decoded by NVIDIA GPUs, there is none.")
    return compare_ways(model, weights, {"cpu": (config, "cpu"), "cuda": (config, "cuda")}, streets)


Way = tuple[EngineConfig, Literal["cpu", "cuda"]]
"""How a model runs, and what decodes its JPEGs."""


def compare_ways(model: str, weights: Path | None, ways: Mapping[str, Way], streets: Streets) -> Likeness:
    """Compare the detections of two ways, the first of which is the expected one."""
    truth = streets.truth()
    by_name = {category["name"]: category["id"] for category in truth["categories"]}
    found = {}
    with TemporaryDirectory() as folder:
        paths = []
        for number, image in enumerate(streets.read()):
            paths.append(Path(folder) / f"{number:06}.jpg")
            paths[-1].write_bytes(encode(image, _QUALITIES[number % len(_QUALITIES)]))
        for name, (config, decoder) in ways.items():
            with Model(read_network(model, weights), replace(config, batch=_BATCH)) as ours:
                found[name] = [
                    each
                    for begin in range(0, len(paths), _BATCH)
                    for each in ours.predict(paths[begin : begin + _BATCH], threshold=THRESHOLD, decoder=decoder)
                ]
    expected, actual = found.values()
    pairing = Pairing()
    for one, other in zip(expected, actual, strict=True):
        pairing.add(pair(one, other))
    results = {
        name: [
            entry
            for number, each in enumerate(images)
            for entry in coco_annotations(each, number, {n: by_name[title] for n, title in each.class_names.items()})
        ]
        for name, images in found.items()
    }
    precision = coco.evaluate(truth, results).measurements
    expected_name, actual_name = ways
    return Likeness(
        model=model,
        images=len(expected),
        size_hw=streets.size_hw,
        detections=sum(map(len, expected)),
        paired=_share_near(pairing),
        paired_sure=_share_near(pairing.above(_SURE)),
        equal_masks=sum(pairing.strings_are_equal) / max(1, len(pairing.strings_are_equal)),
        ap={m.kind: m.metrics["ap"] for m in precision if m.variant == expected_name},
        delta_ap={m.kind: m.deltas["ap"] for m in precision if m.variant == actual_name},
    )


def _share_near(pairing: Pairing) -> float:
    near = sum(difference <= _NEAR for difference in pairing.confidence_differences)
    return near / pairing.found if pairing.found else 1.0


@with_config("device", "precision", "compile")
def main(
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    config: EngineConfig,
    size: SizeOption = "720p",
    count: Annotated[int, typer.Option(help="Streets on which detections are compared.")] = 500,
    only: OnlyOption = None,
    out: ReportOption = None,
) -> None:
    """Compare the GPU's JPEG decoder with libjpeg-turbo: bytes, then detections."""
    found = run(
        out, model=model, weights=weights, config=config, size_hw=parse_size(size), count=count, only=only or ()
    )
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
