"""The parity study: do detections change with the implementation, the precision, the engine, or the program?

Two parts: the demo model on generated streets, whose ground truth is known, and RF-DETR-Seg Nano with random weights,
which other projects can run as well; and, where they are named, all sizes with random weights. Each variant's
detections are recorded once; then the records are compared.

    python -m benchmarks.study out/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from benchmarks.command import SizeOption, start
from benchmarks.streets import Streets
from benchmarks.study_parts import CONFIDENCES, DEMO, PARTS, SIZE_HW, SIZES, StudyPart
from benchmarks.variants import DetectorVariant, write_variant
from maskjet.cli.options import parse_size, print_result, progress
from maskjet.errors import InputError, SourceError, UnsupportedError
from maskjet.host.files import write_json
from maskjet.host.machine import Machine, describe_machine
from maskjet.host.process import convolutions_in_tf32
from maskjet.host.tables import as_table
from maskjet.parity import check, coco
from maskjet.parity.record import Record, read_record

_NAMED = 12  # differences listed of the worst image


@dataclass(frozen=True)
class Answer:
    """The comparisons that answer a question."""

    title: str
    """The question's title."""
    reports: Sequence[check.CheckReport]
    """One report per pair of variants whose records both exist."""


@dataclass(frozen=True)
class PartReport:
    """The results of one part."""

    name: str
    """Name of the part."""
    what: str
    """Network and images, in words."""
    images: int
    """Number of images compared."""
    answers: Sequence[Answer]
    """Answers to the part's questions."""
    precision: coco.PrecisionReport | None
    """Average precision of all variants; None if the part's network is untrained."""


@dataclass(frozen=True)
class StudyReport:
    """The whole study."""

    machine: Machine
    """The machine that compared the records."""
    parts: Sequence[PartReport]
    """Reports of the parts, in the order of `PARTS`."""
    notes: Sequence[str]
    """Parts and variants left out, and why."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        lines = []
        for part in self.parts:
            lines.append(f"\n{part.name}: {part.what}, {part.images} images")
            for answer in part.answers:
                rows = [row for report in answer.reports for row in report.rows()[1:]]
                lines += [f"\n{answer.title}", as_table([check.HEADER, *rows])]
            if part.precision is not None:
                lines += ["\naverage precision", as_table(part.precision.rows())]
        return "\n".join([*lines, str(self.machine), *self.notes])


def record(
    folder: Path,
    *,
    only: Sequence[str] = (),
    variants: Sequence[str] = (),
    images: int | None = None,
    size_hw: tuple[int, int] = SIZE_HW,
    on_progress: Callable[[], object] = lambda: None,
) -> list[str]:
    """Record the detections of every variant, or continue: variants whose records exist are not run again.

    Args:
        folder: Where to write the records, in one folder per part.
        only: Names of parts; empty for the demo model and Nano.
        variants: Names of variants; empty for all that can run here.
        images: Images per part; None for 5,000 of the demo model and 1,000 of Nano.
        size_hw: (height, width) of the streets.
        on_progress: Called after each image of each variant; see `steps`.

    Returns:
        A note for each variant that was left out, with the reason.

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
        streets = Streets(_count(part, images), size_hw)
        notes += _record_part(folder, part, streets, variants, on_progress)
    return notes


def compare(
    folder: Path,
    *,
    images: int | None = None,
    size_hw: tuple[int, int] = SIZE_HW,
    notes: Sequence[str] = (),
    on_progress: Callable[[], object] = lambda: None,
) -> StudyReport:
    """Compare the records in a folder, made on this machine or another, and write study.json beside them.

    Args:
        folder: The folder that `record` wrote to.
        images: Images per part, as given to `record`.
        size_hw: (height, width) of the streets, as given to `record`.
        notes: Notes to add to the report.
        on_progress: Called after each pair, and each variant's scores.

    Raises:
        SourceError: A record is damaged, or of another variant or other images than expected.
        OutputError: The folder can't be written.
        MissingDependencyError: hotcoco is not installed.
    """
    reports = []
    for part in PARTS.values():
        streets = Streets(_count(part, images), size_hw)
        paths = [(variant, _path(folder, part, variant)) for variant in part.variants]
        records = {v.name: _read(path, v, streets) for v, path in paths if path.exists()}
        if records:
            reports.append(_compare(part, records, streets, on_progress))
    report = StudyReport(describe_machine(), reports, notes)
    write_json(folder / "study.json", report.as_dict(), "folder")
    return report


def steps(*, only: Sequence[str] = (), variants: Sequence[str] = (), images: int | None = None) -> int:
    """Count the calls of `on_progress` by `record`."""
    return sum(
        _count(part, images) for part in _parts(only) for v in part.variants if not variants or v.name in variants
    )


def _parts(only: Sequence[str]) -> Iterator[StudyPart]:
    return (part for part in PARTS.values() if (part.name in only if only else part not in SIZES))


def _count(part: StudyPart, images: int | None) -> int:
    return images or (5000 if part is DEMO else 1000)


def _path(folder: Path, part: StudyPart, variant: DetectorVariant) -> Path:
    words = "".join(letter if letter.isalnum() else " " for letter in variant.name).split()
    return folder / part.name / ("_".join(words) + ".jsonl")


def _read(path: Path, variant: DetectorVariant, streets: Streets) -> Record:
    """Read a variant's record, and check that it is of this variant and these streets."""
    found = read_record(path)
    expected = (variant.name, variant.program, [streets.name(number) for number in range(streets.count)])
    if (found.name, found.about.get("program"), [image.name for image in found.images]) != expected:
        what = f"{variant.name!r} on {streets.count} streets from {streets.name(0)!r} on"
        raise SourceError(f"{str(path)!r} must be a record of {what}. Remove it, or ask for its images.")
    return found


def _record_part(
    folder: Path, part: StudyPart, streets: Streets, variants: Sequence[str], on_progress: Callable[[], object]
) -> Iterator[str]:
    """Record the variants that have no record yet; yields a note for each that can't run here."""
    todo = [v for v in part.variants if not variants or v.name in variants]
    missing = [v for v in todo if not _path(folder, part, v).exists()]
    for _ in range((len(todo) - len(missing)) * streets.count):
        on_progress()
    if not missing:
        return
    images = [(streets.name(number), image) for number, image in enumerate(streets.read())]
    network = part.make_network(streets)
    for variant in missing:
        try:
            with convolutions_in_tf32(False):  # TF32 would be the largest difference in the study
                write_variant(_path(folder, part, variant), variant, network, images, on_progress)
        except UnsupportedError as error:
            yield f"{part.name}, {variant.name} left out: {error}"


def _compare(
    part: StudyPart, records: Mapping[str, Record], streets: Streets, on_progress: Callable[[], object]
) -> PartReport:
    answers = []
    for question in part.questions:
        reports = []
        for one, other in question.pairs:
            if one in records and other in records:
                report = check.check(records[one], records[other], confidences=CONFIDENCES)
                worst = [replace(image, differences=image.differences[:_NAMED]) for image in report.worst[:1]]
                reports.append(replace(report, worst=worst))
                on_progress()
        answers.append(Answer(question.title, reports))
    precision = None
    if part.has_truth:
        truth = streets.truth()
        results = {name: found.to_annotations(truth) for name, found in records.items()}
        precision = coco.evaluate(truth, results, on_progress=on_progress)
    return PartReport(part.name, part.what, streets.count, answers, precision)


def main(
    out: Annotated[Path, typer.Argument(help="A folder for the records and study.json; rerun to continue.")],
    only: Annotated[list[str] | None, typer.Option(help="demo or nano; may be repeated.")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="A variant's name; may be repeated.")] = None,
    count: Annotated[int | None, typer.Option(help="Images per part; if not given, demo 5000, nano 1000.")] = None,
    size: SizeOption = "640x360",
    stage: Annotated[
        Literal["all", "record", "compare"], typer.Option(help="Record here and compare elsewhere, or both here.")
    ] = "all",
) -> None:
    """Run every variant that can run here on the same images, and compare their detections."""
    chosen: dict[str, Any] = {"only": only or (), "variants": variant or (), "images": count}
    size_hw = parse_size(size)
    notes: list[str] = []
    if stage != "compare":
        with progress("detecting", steps(**chosen)) as advance:
            notes = record(out, **chosen, size_hw=size_hw, on_progress=advance)
    if stage == "record":
        print_result("\n".join([*notes, f"wrote the records to {out}"]))
        return
    with progress("comparing", None) as advance:
        found = compare(out, images=count, size_hw=size_hw, notes=notes, on_progress=advance)
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)
