"""The files of an evaluation: its report, its precision-recall curves, and a page with the worst images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from maskjet.drawing.showing import encode
from maskjet.files import replacing
from maskjet.parity.closeups import draw_close_ups
from maskjet.parity.coco import METRICS
from maskjet.parity.curves import TITLES, draw_curves
from maskjet.parity.evaluation import LOST, ClassScore, Evaluation, Outcome
from maskjet.parity.images import Images
from maskjet.parity.page import load_template
from maskjet.parity.pair import Difference, DifferenceKind
from maskjet.parity.pictures import find_worst
from maskjet.printing import sanitise

_WORDS: Mapping[DifferenceKind, str] = {
    "dropped": "annotated, but not found",
    "added": "found, but not annotated",
    "class swapped": "found as another class",
}
_MOST_CLASSES = 30  # of a confusion matrix that is shown


class _Kind(NamedTuple):
    """A kind's part of the page."""

    kind: str
    title: str
    rows: Sequence[ClassScore]
    curve: bytes


def write_evaluation(folder: Path, outcome: Outcome, images: Images) -> list[Path]:
    """Write report.json, pr_boxes.png, pr_masks.png and page.html, which needs no other file; returns their paths.

    Raises:
        OutputError: A file can't be written.
        SourceError: An image can't be read any more.
        InputError: An image has changed.
    """
    report, kinds = outcome.report, []
    paths = [folder / "report.json"]
    report.write(paths[0])
    for kind, title in TITLES.items():
        rows = [m for m in report.measurements if m.kind == kind]
        if rows:
            picture = draw_curves(rows)
            paths.append(folder / f"pr_{title}.png")
            with replacing(paths[-1]) as temporary:
                temporary.write(encode(picture, ".png"))
            kinds.append(_Kind(kind, title, rows, encode(picture, ".webp")))
    paths.append(folder / "page.html")
    with replacing(paths[-1]) as temporary:
        temporary.write(_render(outcome, kinds, images).encode())
    return paths


def _render(outcome: Outcome, kinds: Sequence[_Kind], images: Images) -> str:
    report = outcome.report
    worst = find_worst(outcome.worst, outcome.truth, outcome.found, images, LOST)
    confusion, chosen = _choose_classes(report)
    return load_template("evaluation.html", _describe).render(
        report=report,
        data=sanitise(", ".join(f"{name} {value}" for name, value in report.data.items() if value)),
        kinds=kinds,
        shown=[*METRICS, "ar", "ar_small", "ar_medium", "ar_large"],
        confusion=confusion,
        names=[report.classes[number] for number in chosen],
        more=len(report.classes) - len(chosen),
        worst=draw_close_ups(worst, len(outcome.worst)),
    )


def _choose_classes(report: Evaluation) -> tuple[list[list[int]], list[int]]:
    """The confusion matrix of the classes that occur most, and their positions."""
    last = len(report.classes)
    totals = [sum(report.confusion[number]) for number in range(last)]
    chosen = sorted(sorted(range(last), key=lambda number: -totals[number])[:_MOST_CLASSES])
    kept = [*chosen, last]
    return [[report.confusion[row][column] for column in kept] for row in kept], chosen


def _describe(difference: Difference) -> str:
    return _WORDS[difference.kind]
