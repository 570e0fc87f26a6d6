"""Evaluate a model on a data set, and write the report and page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from maskjet.evaluation.datasets import DataSet
from maskjet.evaluation.scoring import Evaluation, Outcome, prepare, run
from maskjet.host.files import replacing, write_json
from maskjet.model import Model
from maskjet.parity.coco import METRICS
from maskjet.parity.page import render
from maskjet.parity.pair import DifferenceKind
from maskjet.parity.pictures import draw_worst
from maskjet.sources.images import to_image

_WORDS: Mapping[DifferenceKind, str] = {
    "dropped": "annotated, but not found",
    "added": "found, but not annotated",
    "class swapped": "found as another class",
}
_TITLES = {"bbox": "boxes", "segm": "masks"}
_MOST_CURVES = 20  # classes with curves: those with most instances
_MOST_CLASSES = 30  # classes shown in the confusion matrix


def evaluate(
    model: Model,
    data: str | Path,
    *,
    split: str | None = None,
    class_map: Mapping[str, str] | None = None,
    out: str | Path | None = None,
    on_progress: Callable[[], object] = lambda: None,
) -> Evaluation:
    """Measure a model on a data set with annotations, by COCO's rules.

    Detections above a confidence of 0.001 are scored whatever the model's thresholds, up to its `max_detections`, 100
    per image and class; `area` and `iscrowd` are the data set's. Classes are matched by name, without case; those that
    only the data set has are left out, and a warning names them, as what can't be used, before the model runs.

    Args:
        model: The model. Its own thresholds are those of `ClassScore.given` and `Evaluation.confusion`.
        data: Folder of a data set, in COCO's layout, CVAT's, Roboflow's or YOLO's; or its COCO file or data.yaml.
        split: One of several parts; None for the only one, or else the one named val, valid or test, or so beginning.
        class_map: The model's class by the data set's, for those whose names differ.
        out: A folder for report.json, and page.html with precision-recall curves and the worst images; None for none.
        on_progress: Called after each image.

    Raises:
        InputError: No class matches, or an annotation is invalid.
        SourceError: The data set can't be read, an image is missing, or has another size than annotated.
        MissingDependencyError: hotcoco is not installed or, for data.yaml, PyYAML.
        OutputError: A file can't be written.
        DeviceError: The device failed.

    Examples:
        >>> import maskjet
        >>> _ = maskjet.traffic.write_coco("streets", images=2, size_hw=(176, 312))
        >>> report = maskjet.evaluate(maskjet.load("demo"), "streets")
        >>> report.measurements[0].metrics["ap50"] > 0.5
        True
    """
    task = prepare(DataSet(Path(data), split), model, class_map or {})
    for note in task.notes:
        warnings.warn(note, stacklevel=2)
    outcome = run(task, model, on_progress)
    if out is not None:
        write_evaluation(Path(out), outcome, task.images)
    return outcome.report


def write_evaluation(folder: Path, outcome: Outcome, images: DataSet) -> list[Path]:
    """Write report.json and a self-contained page.html; returns their paths, and raises as `evaluate`."""
    paths = [folder / "report.json", folder / "page.html"]
    write_json(paths[0], outcome.report.as_dict(), "out")
    with replacing(paths[1]) as temporary:
        temporary.write(_render(outcome, images))
    return paths


def _render(outcome: Outcome, images: DataSet) -> bytes:
    report, kinds = outcome.report, []
    for kind, title in _TITLES.items():
        if rows := [m for m in report.measurements if m.kind == kind]:
            scored = sorted((m for m in rows[1:] if m.curve), key=lambda m: -m.things)
            kinds.append((kind, title, rows, [rows[0], *scored[:_MOST_CURVES]]))
    pixels = (to_image(images.images / changed.name, "image") for changed, *_ in outcome.worst)
    confusion, chosen = _choose_classes(report)
    return render(
        "evaluation.html",
        ("annotated", "found"),
        f"{report.machine}. Page by maskjet val.",
        _WORDS,
        report=report,
        kinds=kinds,
        shown=[*METRICS, "ar", "ar_small", "ar_medium", "ar_large"],
        confusion=confusion,
        names=[report.classes[number] for number in chosen],
        more=len(report.classes) - len(chosen),
        worst=draw_worst(outcome.worst, pixels),
    )


def _choose_classes(report: Evaluation) -> tuple[list[list[int]], list[int]]:
    """Reduce the confusion matrix to the most frequent classes; also returns their positions."""
    last = len(report.classes)
    totals = [sum(report.confusion[number]) for number in range(last)]
    chosen = sorted(sorted(range(last), key=lambda number: -totals[number])[:_MOST_CLASSES])
    kept = [*chosen, last]
    return [[report.confusion[row][column] for column in kept] for row in kept], chosen
