"""Scores of a model on a data set: COCO metrics, precision and recall at thresholds, confusion matrix."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.errors import InputError, suggest
from maskjet.evaluation.datasets import DataSet, shorten
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.host.printing import as_utf8
from maskjet.host.tables import shown
from maskjet.model import Model
from maskjet.outputs.lines import digest
from maskjet.parity.check import ChangedImage, rank_images
from maskjet.parity.coco import METRICS, Scores, check_kinds
from maskjet.parity.coco_files import Entry, draw_masks, load_library
from maskjet.parity.pair import KINDS, compare
from maskjet.parity.record import ImageRecord, Record

LOWEST = 0.001
"""Confidence threshold of an evaluation, as usual for COCO."""
LOST = KINDS[:3]
"""Kinds of difference from the annotations by which the worst images are ranked."""


@dataclass(frozen=True)
class OperatingPoint:
    """Precision, recall and F1 at a threshold and IoU 0.5; None where undefined, without detections or truth."""

    threshold: float | None
    """Confidence threshold; None if the classes have different ones, or nothing was found."""
    precision: float | None
    """Share of detections that are correct, 0..1."""
    recall: float | None
    """Share of annotated instances that were found, 0..1."""
    f1: float | None
    """Harmonic mean of precision and recall, 0..1."""


@dataclass(frozen=True)
class ClassScore:
    """Scores of one class, or of all classes, for one kind."""

    class_name: str | None
    """Name of the model's class; None for all classes."""
    kind: str
    """Kind of scores: boxes, "bbox", or masks, "segm"."""
    things: int
    """Number of annotated instances, without crowds."""
    metrics: Mapping[str, float | None]
    """COCO averages named by `coco.METRICS` and `coco.RECALLS`, equal to pycocotools; None without instances."""
    best: OperatingPoint
    """Operating point at the threshold of the highest F1."""
    given: OperatingPoint
    """Operating point at the model's own threshold."""
    curve: Sequence[float]
    """COCO precision at recalls 0, 0.01 .. 1 and IoU 0.5; empty if there is nothing to score."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(measuring.MeasuredReport):
    """Evaluation of a model on a data set; `measurements` starts with all classes together, by kind."""

    model: str
    """Name of the model."""
    data: Mapping[str, Any]
    """Folder and split of the data set."""
    images: int
    """Number of images."""
    classes: Sequence[str]
    """Names of the scored classes."""
    confusion: Sequence[Sequence[int]]
    """Confusion matrix at the model's thresholds, IoU 0.5: annotated by found classes; the last is none."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per kind and class."""
        points = ("threshold", "precision", "recall", "F1")
        rows: list[tuple[str, ...]] = [
            ("class", "kind", "things", "AP", "50", "75", "S", "M", "L", "AR", "best at", *points[1:], *points)
        ]
        for m in self.measurements:
            scores = [shown(m.metrics[name], 4) for name in (*METRICS[:6], "ar")]
            cells = [shown(value, 3) for point in (m.best, m.given) for value in vars(point).values()]
            rows.append((m.class_name or "all", m.kind, str(m.things), *scores, *cells))
        return rows


class Task(NamedTuple):
    """A validated data set, with classes matched to the model's."""

    images: DataSet
    """Images and annotations of the data set."""
    truth: Mapping[str, Any]
    """COCO annotations of the matched classes, with the model's names."""
    kinds: Sequence[str]
    """Kinds that can be scored: "bbox", "segm"."""
    notes: Sequence[str]
    """Sentences on classes or kinds left out."""


class Outcome(NamedTuple):
    """An evaluation, and the data for its pictures."""

    report: Evaluation
    """Report with all scores."""
    worst: Sequence[tuple[ChangedImage, ImageRecord, ImageRecord]]
    """The images with most missed, false and misclassified instances: how they differ, the annotations as detections
    of confidence 1, and the counted detections above the model's thresholds."""


def prepare(images: DataSet, model: Model, class_map: Mapping[str, str]) -> Task:
    """Match a data set's classes with a model's, and check it, before the model runs; raises as `evaluate` does."""
    load_library()
    if not images.truth()["annotations"]:
        raise InputError(" ".join([f"data must have annotations, {str(images.folder)!r} has none.", *images.notes]))
    truth, notes = _match_classes(images.truth(), list(model.thresholds), class_map)
    kinds, lacking = check_kinds(truth, {"found": []})
    if "segm" in kinds:
        truth = draw_masks(truth)
    images.check_images()
    return Task(images, truth, kinds, [*images.notes, *notes, *lacking])


def run(task: Task, model: Model, on_progress: Callable[[], object] = lambda: None) -> Outcome:
    """Run a model on the images and score its detections; raises as `evaluate` does."""
    truth, names = task.truth, {category["id"]: category["name"] for category in task.truth["categories"]}
    found = _collect(model, task.images, on_progress)
    entries = found.to_annotations(truth)
    has_masks = all(each.found.rle is not None for each in found.images)
    kinds = [kind for kind in task.kinds if kind == "bbox" or has_masks]
    notes = [*task.notes, *["segm left out: the model has no masks."][: len(task.kinds) - len(kinds)]]
    thresholds = {number: model.thresholds[name] for number, name in names.items()}
    limits = np.array([thresholds[entry["category_id"]] for entry in entries], np.float32)
    is_above = np.array([entry["score"] for entry in entries], np.float32) > limits
    measurements: list[ClassScore] = []
    for kind in kinds:
        scores = Scores.of(truth, entries, kind)
        marks = scores.mark(len(entries))
        measurements += _score_classes(scores, kind, truth, entries, marks, is_above, thresholds)
    is_shown = is_above & (marks != 0)
    confused = [entry for entry, is_kept in zip(entries, is_shown, strict=True) if is_kept]
    if found.skipped:
        notes.append(f"{len(found.skipped)} images could not be read; the things on them count as missed.")
    report = Evaluation(
        machine=describe_machine(),
        measurements=measurements,
        notes=notes,
        model=found.name,
        data={"folder": str(task.images.folder), "split": task.images.split},
        images=len(truth["images"]),
        classes=[names[number] for number in sorted(names)],
        confusion=Scores.of(truth, confused, kinds[-1]).confusion(),
    )
    return Outcome(report, _find_worst(truth, found, is_shown, kinds[-1]))


def _match_classes(
    truth: Entry, class_names: Sequence[str], class_map: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Rename annotated classes to the model's; others are left out, and listed in a note."""
    known = {name.casefold(): name for name in reversed(class_names)} | {name: name for name in class_names}
    titles = {category["id"]: str(category.get("name")) for category in truth["categories"]}
    for theirs, ours in class_map.items():
        if theirs not in titles.values():
            end = suggest(theirs, titles.values())
            raise InputError(f"class_map must map classes of the data set, got {theirs!r}{end}")
        if not {ours, ours.casefold()} & known.keys():
            raise InputError(f"class_map must map to classes of the model, got {ours!r}{suggest(ours, class_names)}")
    first: dict[str, int] = {}  # model class to category id; several categories may map to one class
    moved = {
        number: first.setdefault(own, number)
        for number, title in titles.items()
        if (own := known.get(mapped := class_map.get(title, title), known.get(mapped.casefold())))
    }
    counts = Counter(entry["category_id"] for entry in truth["annotations"])
    lost = [f"{title} ({counts[number]})" for number, title in titles.items() if counts[number] and number not in moved]
    others = [name for name in class_names if name not in first]
    if not counts.keys() & moved.keys():
        raise InputError(
            f"data must have annotations of the model's classes, it has {shorten(lost)}; the model knows "
            f"{shorten(others)}. A mapping such as Car=car matches other names."
        )
    note = f"left out, as the model has no such class: {shorten(lost)}; it also knows {shorten(others)}."
    categories = [{"id": number, "name": name} for name, number in first.items()]
    annotations = [
        {**entry, "category_id": moved[entry["category_id"]]}
        for entry in truth["annotations"]
        if entry["category_id"] in moved
    ]
    return {**truth, "categories": categories, "annotations": annotations}, [note] if lost else []


def _score_classes(
    scores: Scores,
    kind: str,
    truth: Entry,
    entries: Sequence[Entry],
    marks: NDArray[np.int8],
    is_above: NDArray[np.bool_],
    thresholds: Mapping[int, float],
) -> list[ClassScore]:
    """Score all classes together, then each by category id."""
    names = {category["id"]: category["name"] for category in truth["categories"]}
    category = np.array([entry["category_id"] for entry in entries])
    confidence = np.array([entry["score"] for entry in entries])
    counts = Counter(entry["category_id"] for entry in truth["annotations"] if not entry.get("iscrowd"))
    made = []
    ids = sorted(names)
    for position, number in enumerate([None, *ids], -1):  # None: all classes
        own = ids if number is None else [number]
        is_mine = (marks != 0) & np.isin(category, own)
        things, right = sum(counts[each] for each in own), marks[is_mine] > 0
        common = {thresholds[each] for each in own}
        given = _rate(common.pop() if len(common) == 1 else None, right[is_above[is_mine]], things)
        best, rank = _find_best(confidence[is_mine], right, things), None if number is None else position
        name = None if number is None else names[number]
        made.append(ClassScore(name, kind, things, scores.metrics(rank), best, given, scores.curve(rank)))
    return made


def _rate(threshold: float | None, right: NDArray[np.bool_], things: int) -> OperatingPoint:
    hits, found = int(right.sum()), len(right)
    f1 = 2 * hits / (found + things) if found + things else None
    return OperatingPoint(threshold, hits / found if found else None, hits / things if things else None, f1)


def _find_best(confidence: NDArray[np.float64], right: NDArray[np.bool_], things: int) -> OperatingPoint:
    """Find the operating point of the highest F1; its threshold is halfway to the next lower confidence."""
    if not len(right):
        return _rate(None, right, things)
    order = np.argsort(-confidence, kind="stable")
    ranked, hits = confidence[order], np.cumsum(right[order])
    f1 = 2 * hits / (np.arange(1, len(right) + 1) + things)
    f1[:-1][ranked[:-1] == ranked[1:]] = -1  # no threshold separates equal confidences
    best = int(f1.argmax())
    lower = ranked[best + 1] if best + 1 < len(ranked) else LOWEST
    return _rate(float((ranked[best] + lower) / 2), right[order][: best + 1], things)


def _collect(model: Model, images: DataSet, on_progress: Callable[[], object]) -> Record:
    """Run a model on the images of a data set; raises InputError if none can be read."""
    source = images.open()
    kept: list[ImageRecord] = []
    with closing(model.stream(source, threshold=LOWEST)) as results:
        for frame, found in results:
            name = Path(frame.name).relative_to(images.images).as_posix()
            kept.append(ImageRecord(frame.index, name, digest(frame.image), found))
            on_progress()
    skipped = [reason for _, reason in source.bad_frames]
    if not kept:
        raise InputError(f"data must have an image that can be read, got {as_utf8(skipped[0])}")
    return Record({"name": model.spec.name}, kept, skipped)


def _find_worst(
    truth: Entry, found: Record, is_shown: NDArray[np.bool_], kind: str
) -> list[tuple[ChangedImage, ImageRecord, ImageRecord]]:
    """Return the images on which the shown detections differ most from the annotations, with both."""
    names = {category["id"]: category["name"] for category in truth["categories"]}
    by_image = defaultdict(list)
    for entry in truth["annotations"]:
        if not entry.get("iscrowd"):
            by_image[entry["image_id"]].append(entry)
    ids = {image["file_name"]: image["id"] for image in truth["images"]}
    placed = [by_image[ids[image.name]] for image in found.images]
    shown: list[Detections] = []
    changed, start = {}, 0
    for number, (image, entries) in enumerate(zip(found.images, placed, strict=True)):
        scored = image.found[np.isin(image.found.class_name, list(names.values()))]  # as `Record.to_annotations`
        shown.append(scored[is_shown[start : start + len(scored)]])
        start += len(scored)
        differences = compare(_to_detections(entries, names, shown[-1]), shown[-1])[1]
        if lost := [difference for difference in differences if difference.kind in LOST]:
            changed[number] = lost
    worst = []
    for each in rank_images([image.name for image in found.images], changed):
        image, kept, entries = found.images[each.number], shown[each.number], placed[each.number]
        things = _to_detections(entries, names, kept)
        if kind == "segm" and kept.rle is not None:
            things = replace(things, rle=[entry["segmentation"] for entry in entries])
        worst.append((each, replace(image, found=things), replace(image, found=kept)))
    return worst


def _to_detections(entries: Sequence[Entry], names: Mapping[int, str], found: Detections) -> Detections:
    """Convert annotations of an image to detections of confidence 1, without masks."""
    numbers = {name: number for number, name in found.class_names.items()}
    corners = np.array([entry["bbox"] for entry in entries], np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    return Detections(
        image_size=found.image_size,
        xyxy=corners.clip(0, found.image_size[::-1] * 2).astype(np.float32),
        confidence=np.ones(len(entries), np.float32),
        class_id=np.array([numbers[names[entry["category_id"]]] for entry in entries], np.int32),
        class_names=found.class_names,
    )
