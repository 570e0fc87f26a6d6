"""The parity study: does the answer change with the implementation, the precision, the engine, or the program?

Two parts: the demo model on generated streets, whose truth is known, and RF-DETR-Seg Nano with planted random weights,
which the peers can run as well. Each variant's detections are dumped once; then they are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.planted import plant
from maskjet.config import EngineConfig
from maskjet.errors import InputError, SourceError, UnsupportedError
from maskjet.files import write_json
from maskjet.model import read_network
from maskjet.networks.rfdetr import RFDETR
from maskjet.parity import RESAMPLES, check, coco
from maskjet.parity.dump import Dump, write_dump
from maskjet.parity.images import Images, Kept, Traffic
from maskjet.parity.machine import Machine, describe_machine
from maskjet.parity.table import as_table
from maskjet.parity.variants import Variant
from maskjet.process import convolutions_in_tf32
from maskjet.spec import SPECS

_CERTAIN = 0.4
CONFIDENCES = (_CERTAIN,)
"""At which detections are counted besides at all: the published study's. Nano's dumps have no others: 53 an image."""
SIZE_HW = (360, 640)
"""(height, width) of the streets."""
_PLANTED = 25  # detections above 0.5 per image
_SPEC = "rf-detr-seg-nano"
_BATCH = 8


@dataclass(frozen=True)
class Question:
    """What some comparisons answer together."""

    title: str
    """In words."""
    pairs: Sequence[tuple[str, str]]
    """Expected and actual variant."""


@dataclass(frozen=True)
class Part:
    """Variants of one network on one set of images."""

    name: str
    """Of its folder."""
    what: str
    """Network and images, in words."""
    make_network: Callable[[Images], RFDETR]
    """Given the images."""
    variants: Sequence[Variant]
    """In the order in which they run."""
    questions: Sequence[Question]
    """About them."""
    has_truth: bool
    """Whether average precision means something."""


def _steps(name: str, **choices: Any) -> Variant:
    """Step by step in float32: nothing but the choices differs."""
    config = {"precision": "fp32", "engine": "eager", "compile": False, **choices}
    return Variant(name, EngineConfig(**config), batch=_BATCH)


def _graph(name: str, precision: str, *, compile: bool = False, depth: int = 4, batch: int = _BATCH) -> Variant:  # noqa: A002
    config = EngineConfig(precision=precision, engine="graph", compile=compile)  # type: ignore[arg-type]
    return Variant(name, config, depth=depth, batch=batch)


_POST_REFERENCE = {"select": "reference", "encode_masks": "reference"}
_POST_CPU = {"select": "cpu", "encode_masks": "cpu"}

DEMO = Part(
    name="demo",
    what="the demo model on generated streets",
    make_network=lambda _images: read_network("demo"),
    variants=(
        _steps("fp32"),
        _steps("preprocess: reference", implementation={"preprocess": "reference"}),
        _steps("preprocess: cv2-exact", resample="cv2"),
        _steps("preprocess: cv2 itself", resample="cv2", implementation={"preprocess": "reference"}),
        _steps("postprocess: reference", implementation=_POST_REFERENCE),
        _steps("postprocess: cpu", implementation=_POST_CPU),
        _graph("fp32, graph, depth 1", "fp32", depth=1),
        _graph("fp32, graph, depth 4", "fp32"),
        _graph("fp32, compiled, depth 4", "fp32", compile=True),
        _steps("fp16", precision="fp16"),
        _graph("fp16, graph, depth 4", "fp16"),
        _graph("fp16, compiled, depth 4", "fp16", compile=True),
        _graph("fp16, compiled, depth 4, one by one", "fp16", compile=True, batch=1),
        _steps("bf16", precision="bf16"),
        _graph("bf16, compiled, depth 4", "bf16", compile=True),
    ),
    questions=(
        Question(
            "preprocess: reference, Triton, cv2-exact and cv2 itself",
            (
                ("preprocess: reference", "fp32"),
                ("preprocess: cv2 itself", "preprocess: cv2-exact"),
                ("preprocess: reference", "preprocess: cv2 itself"),
                ("preprocess: cv2 itself", "fp32"),
            ),
        ),
        Question(
            "postprocess: reference, Triton and CPU",
            (("postprocess: reference", "fp32"), ("postprocess: cpu", "fp32")),
        ),
        Question(
            "engine: a graph is what the steps are, at any depth",
            (
                ("fp32", "fp32, graph, depth 1"),
                ("fp32, graph, depth 1", "fp32, graph, depth 4"),
                ("fp16", "fp16, graph, depth 4"),
            ),
        ),
        Question(
            "precision and compilation, against float32 step by step",
            tuple(
                ("fp32", name)
                for name in (
                    *("fp32, compiled, depth 4", "fp16", "fp16, compiled, depth 4"),
                    *("fp16, compiled, depth 4, one by one", "bf16", "bf16, compiled, depth 4"),
                )
            ),
        ),
    ),
    has_truth=True,
)
"""Baseline of average precision: the first variant."""

NANO = Part(
    name="nano",
    what="RF-DETR-Seg Nano with planted random weights on generated streets of one shape",
    make_network=lambda images: plant(SPECS[_SPEC], [images.at(number)[1] for number in range(8)], survivors=_PLANTED),
    variants=tuple(
        replace(variant, threshold=_CERTAIN)
        for variant in (
            _steps("fp32"),
            _steps("postprocess: reference", implementation=_POST_REFERENCE),
            _steps("postprocess: cpu", implementation=_POST_CPU),
            replace(_steps("fp32, one by one"), batch=1),
            _graph("fp16, compiled, depth 4", "fp16", compile=True, batch=1),
            Variant("rfdetr predict()", program="rfdetr"),
            Variant("rfdetr predict(), no TF32", program="rfdetr_ieee"),
            Variant("rfdetr, fp16", program="rfdetr_fp16"),
            Variant("inference-models", program="inference_models"),
        )
    ),
    questions=(
        Question(
            "postprocess: reference, Triton and CPU",
            (("postprocess: reference", "fp32"), ("postprocess: cpu", "fp32")),
        ),
        Question(
            "the whole pipeline: rfdetr's predict() without TF32 against ours, and against itself run otherwise",
            tuple(
                ("rfdetr predict(), no TF32", name)
                for name in (
                    *("fp32, one by one", "fp32", "fp16, compiled, depth 4"),
                    *("rfdetr predict()", "rfdetr, fp16", "inference-models"),
                )
            ),
        ),
    ),
    has_truth=False,
)
PARTS: Mapping[str, Part] = {part.name: part for part in (DEMO, NANO)}
"""By name."""


@dataclass(frozen=True)
class Answer:
    """A question's comparisons."""

    title: str
    """The question's."""
    reports: Sequence[check.Report]
    """One per pair both of whose variants are there."""


@dataclass(frozen=True)
class PartReport:
    """What came out of one part."""

    name: str
    """The part's."""
    what: str
    """Network and images, in words."""
    images: int
    """Compared."""
    answers: Sequence[Answer]
    """To its questions."""
    precision: coco.Report | None
    """Average precision of all variants; None where the truth means nothing."""


@dataclass(frozen=True)
class Report:
    """The whole study."""

    machine: Machine
    """Where it was compared; where each variant ran stands in its dump."""
    parts: Sequence[PartReport]
    """In the order of `PARTS`."""
    runs: Mapping[str, Any]
    """By part: where and with which versions its variants ran."""
    notes: Sequence[str]
    """What was left out, and why."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        lines = []
        for part in self.parts:
            lines.append(f"\n{part.name}: {part.what}, {part.images} images")
            for answer in part.answers:
                rows = [check.row_of(report, m) for report in answer.reports for m in report.measurements]
                lines += [f"\n{answer.title}", as_table([check.HEADER, *rows])]
            if part.precision is not None:
                lines += ["\naverage precision", as_table(part.precision.rows())]
        return "\n".join([*lines, str(self.machine), *self.notes])


def dump(
    folder: Path,
    *,
    only: Sequence[str] = (),
    variants: Sequence[str] = (),
    images: int | None = None,
    size_hw: tuple[int, int] = SIZE_HW,
    on_progress: Callable[[], object] = lambda: None,
) -> list[str]:
    """Dump what every variant finds, or go on with it: variants whose dumps are there are not run again.

    Args:
        folder: Gets the dumps, in a folder per part.
        only: Names of parts; none for all.
        variants: Names of variants; none for all that can be had here.
        images: Of each part; None for 5,000 of the demo model and 1,000 of Nano.
        size_hw: (height, width) of the streets.
        on_progress: Called after each image of each variant; see `steps`.

    Returns:
        What was left out, and why.

    Raises:
        InputError: An argument is not as above.
        OutputError: The folder can't be written.
    """
    unknown = [name for name in only if name not in PARTS]
    unknown += [name for name in variants if not any(name == v.name for part in PARTS.values() for v in part.variants)]
    if unknown:
        raise InputError(f"only and variants must name parts and variants of the study, got {', '.join(unknown)}.")
    notes: list[str] = []
    for part in _parts(only):
        streets = Traffic(_count(part, images), size_hw)
        notes += _dump_part(folder, part, streets, variants, on_progress)
    return notes


def compare(
    folder: Path,
    *,
    images: int | None = None,
    size_hw: tuple[int, int] = SIZE_HW,
    resamples: int = RESAMPLES,
    notes: Sequence[str] = (),
    on_progress: Callable[[], object] = lambda: None,
) -> Report:
    """Compare the dumps that are there, on this machine or another one, and write study.json beside them.

    Args:
        folder: As for `dump`.
        images: As for `dump`.
        size_hw: As for `dump`.
        resamples: Of the bootstrap.
        notes: For the report.
        on_progress: Called after each image of each pair, and while average precision is measured.

    Raises:
        SourceError: A dump is damaged, or not that of its variant and these images.
        OutputError: The folder can't be written.
        MissingDependencyError: faster-coco-eval is not installed.
    """
    reports, runs = [], {}
    for part in PARTS.values():
        streets = Traffic(_count(part, images), size_hw)
        dumps = {v.name: _load(path, v, streets) for v in part.variants if (path := _path(folder, part, v)).exists()}
        if dumps:
            runs[part.name] = {name: found.run for name, found in dumps.items()}
            reports.append(_compare(part, dumps, streets, resamples, on_progress))
    report = Report(describe_machine(), reports, runs, notes)
    write_json(folder / "study.json", report.as_dict(), "folder")
    return report


def steps(*, only: Sequence[str] = (), variants: Sequence[str] = (), images: int | None = None) -> int:
    """How often `dump` calls `on_progress`."""
    return sum(
        _count(part, images) for part in _parts(only) for v in part.variants if not variants or v.name in variants
    )


def _parts(only: Sequence[str]) -> Iterator[Part]:
    return (part for part in PARTS.values() if not only or part.name in only)


def _count(part: Part, images: int | None) -> int:
    return images or (5000 if part is DEMO else 1000)


def _path(folder: Path, part: Part, variant: Variant) -> Path:
    words = "".join(letter if letter.isalnum() else " " for letter in variant.name).split()
    return folder / part.name / ("_".join(words) + ".npz")


def _load(path: Path, variant: Variant, streets: Traffic) -> Dump:
    """A variant's dump, which must be one: a file may have been copied, or be of another number of images."""
    dump = Dump.load(path)
    expected = (variant.name, variant.program, json.loads(json.dumps(streets.describe())))
    got = (dump.variant.get("name"), dump.variant.get("program"), dict(dump.images))
    if got != expected:
        raise SourceError(
            f"{str(path)!r} must be a dump of {expected}, it is of {got}; remove it, or ask for its images."
        )
    return dump


def _dump_part(
    folder: Path, part: Part, streets: Traffic, variants: Sequence[str], on_progress: Callable[[], object]
) -> Iterator[str]:
    """Dump what is not there yet; yields why something can't be had."""
    todo = [v for v in part.variants if not variants or v.name in variants]
    missing = [v for v in todo if not _path(folder, part, v).exists()]
    for _ in range((len(todo) - len(missing)) * streets.length):
        on_progress()
    if not missing:
        return
    images = Kept(streets)
    network = part.make_network(images)
    for variant in missing:
        try:
            with convolutions_in_tf32(False):  # it would be the largest difference in the study
                write_dump(_path(folder, part, variant), variant, network, images, on_progress=on_progress)
        except UnsupportedError as error:
            yield f"{part.name}, {variant.name} left out: {error}"


def _compare(
    part: Part, dumps: Mapping[str, Dump], streets: Traffic, resamples: int, on_progress: Callable[[], object]
) -> PartReport:
    answers = []
    for question in part.questions:
        pairs = [(dumps[one], dumps[other]) for one, other in question.pairs if one in dumps and other in dumps]
        reports = [check.check(*pair, confidences=CONFIDENCES, on_progress=on_progress) for pair in pairs]
        answers.append(Answer(question.title, [replace(report, worst=report.worst[:1]) for report in reports]))
    precision = None
    if part.has_truth:
        truth = streets.truth()
        results = {name: dump.to_coco(truth) for name, dump in dumps.items()}
        precision = coco.evaluate(truth, results, resamples=resamples, on_progress=on_progress)
    return PartReport(part.name, part.what, streets.length, answers, precision)
