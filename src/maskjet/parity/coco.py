"""COCO mAP of several variants, computed by hotcoco."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.errors import InputError
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.host.tables import shown
from maskjet.parity.coco_files import Entry, draw_masks, index, load_library, load_results

KINDS = ("bbox", "segm")
"""Kinds of average precision: "bbox" for boxes, "segm" for masks."""
_MOST_CATEGORIES = 2**12  # the evaluator takes 0.4 MB for each
_RESAMPLES = 1000  # of the bootstrap
_FIELDS = {"bbox": "bbox", "segm": "segmentation"}
METRICS = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
"""COCO's average precisions: over IoU thresholds 0.5, 0.55 .. 0.95, at two of them, and of instances smaller than 32²
pixels, of 32² to 96², and larger."""
RECALLS = ("ar1", "ar10", "ar", "ar_small", "ar_medium", "ar_large")
"""COCO's average recalls: with at most 1, 10 and 100 detections per image and class, then by size with 100."""


@dataclass(frozen=True)
class Precision:
    """Scores of one variant and kind."""

    variant: str
    """The variant's name."""
    kind: str
    """One of `KINDS`."""
    metrics: Mapping[str, float | None]
    """`METRICS` and `RECALLS`, 0..1, means over classes; None if the truth has no instances of that size."""
    deltas: Mapping[str, float | None]
    """Difference to the baseline (this variant minus the baseline) by metric."""


@dataclass(frozen=True, kw_only=True)
class PrecisionReport(measuring.MeasuredReport):
    """COCO scores of all variants."""

    measurements: Sequence[Precision]
    """One entry per kind and variant, sorted by kind, then in the order of the results."""
    baseline: str
    """The variant that the others are compared with."""
    images: int
    """Number of images in the truth."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        deltas = ("ΔAP", "Δ50", "Δ75", "ΔS", "ΔM", "ΔL")
        rows: list[tuple[str, ...]] = [("variant", "kind", "AP", "50", "75", "S", "M", "L", *deltas)]
        for m in self.measurements:
            scores = (shown(m.metrics[metric], 4) for metric in METRICS)
            rows.append((m.variant, m.kind, *scores, *(_signed(m.deltas[metric]) for metric in METRICS)))
        return rows


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def evaluate(
    truth: Entry,
    results: Mapping[str, Sequence[Entry]],
    *,
    on_progress: Callable[[], object] = lambda: None,
) -> PrecisionReport:
    """Score variants against the truth, and each against the first, the baseline.

    Equal to pycocotools' COCOeval, bit for bit. In mask AP a detection's size is its mask's area, as with COCO's own
    results files, which have no boxes beside masks. Neither truth nor results are changed.

    Args:
        truth: A COCO data set: images, categories, annotations; passed by `coco_files.check_truth`.
        results: COCO results by variant: image_id, category_id, score, and bbox (x, y, width, height), segmentation, a
            compressed RLE, or both, of the truth's images and categories. A kind is scored only if truth and all
            variants have it.
        on_progress: Called for each kind after each variant.

    Raises:
        InputError: No kind can be scored, a mask of the truth is invalid, or it has more than 4,096 categories.
        MissingDependencyError: hotcoco is not installed.
    """
    kinds, notes = check_kinds(truth, results)
    baseline = next(iter(results))
    if len(truth["categories"]) > _MOST_CATEGORIES:
        raise InputError(f"truth must have at most {_MOST_CATEGORIES:,} categories, got {len(truth['categories']):,}.")
    if "segm" in kinds:
        truth = draw_masks(truth)
    measurements = []
    for kind in kinds:
        scores = {}
        for variant, entries in results.items():
            scores[variant] = Scores.of(truth, entries, kind).metrics()
            on_progress()
        measurements += [_compare(name, kind, baseline, scores) for name in results]
    return PrecisionReport(
        machine=describe_machine(),
        measurements=measurements,
        notes=notes,
        baseline=baseline,
        images=len(truth["images"]),
    )


@dataclass(frozen=True)
class Scores:
    """One variant's detections of one kind, matched with the truth."""

    evaluator: Any
    """hotcoco's evaluator, after evaluation."""

    @classmethod
    def of(cls, truth: Entry, entries: Sequence[Entry], kind: str) -> Scores:
        """Match the entries of results with the truth, both checked already."""
        indexed = index(truth, kind)
        evaluator = load_library().COCOeval(indexed, load_results(indexed, entries, kind), kind)
        if truth["annotations"] or entries:
            evaluator.evaluate()
            evaluator.accumulate()
        return cls(evaluator)

    def metrics(self, category: int | None = None) -> dict[str, float | None]:
        """`METRICS` and `RECALLS` of all categories, or of the one with this rank, from 0."""
        found = self.evaluator.eval
        if found is None:  # there is nothing to match
            return dict.fromkeys(METRICS + RECALLS)
        categories = slice(None) if category is None else [category]
        precision, recall = found["precision"][:, :, categories], found["recall"][:, categories]
        values = [precision[..., 0, -1], *(precision[[at], ..., 0, -1] for at in (0, 5))]
        values += [precision[..., area, -1] for area in (1, 2, 3)]
        values += [*(recall[..., 0, most] for most in (0, 1, 2)), *(recall[..., area, -1] for area in (1, 2, 3))]
        return dict(zip(METRICS + RECALLS, map(_mean, values), strict=True))

    def curve(self, category: int | None = None) -> list[float]:
        """Precision at recalls 0, 0.01 .. 1 and IoU 0.5, of one category or the mean; empty without truth."""
        found = self.evaluator.eval["precision"][0, :, :, 0, -1]
        scored = found[:, found[0] > -1] if category is None else found[:, [category]]
        return scored.mean(axis=1).tolist() if scored.size and scored[0, 0] > -1 else []

    def mark(self, count: int) -> NDArray[np.int8]:
        """Classify `count` entries at IoU 0.5, int8 [n]: 1 true positive, -1 false positive, 0 ignored (crowd)."""
        status = self.evaluator.image_diagnostics(iou_thr=0.5, score_thr=0.0)["dt_status"]
        return np.array([{"tp": 1, "fp": -1}.get(status.get(number), 0) for number in range(1, count + 1)], np.int8)

    def confusion(self) -> list[list[int]]:
        """Confusion matrix at IoU 0.5: annotated categories by found ones, by rank; the last of both is none."""
        matrix: list[list[int]] = self.evaluator.confusion_matrix(iou_thr=0.5)["matrix"].tolist()
        return matrix


def bound_loss(before: Scores, after: Scores) -> float:
    """Upper bound of the loss of AP: of the 95 % interval of a paired bootstrap over the images."""
    found = load_library().compare(before.evaluator, after.evaluator, n_bootstrap=_RESAMPLES, seed=0)
    return -float(found["ci"]["AP"]["lower"])


def _mean(values: NDArray[np.float64]) -> float | None:
    """Mean as in pycocotools: ignores -1, which marks nothing to score; None if nothing is left."""
    scored = values[values > -1]
    return float(np.mean(scored)) if scored.size else None


def _compare(variant: str, kind: str, baseline: str, scores: Mapping[str, Mapping[str, float | None]]) -> Precision:
    deltas = {
        metric: None if score is None or (other := scores[baseline][metric]) is None else score - other
        for metric, score in scores[variant].items()
    }
    return Precision(variant, kind, scores[variant], deltas)


def check_kinds(truth: Entry, results: Mapping[str, Sequence[Entry]]) -> tuple[list[str], list[str]]:
    """The kinds that can be scored, and a note if one can't; raises InputError if none can."""
    lists = [("the truth", truth["annotations"]), *results.items()]
    lacking = {
        kind: [name for name, entries in lists if any(entry.get(_FIELDS[kind]) is None for entry in entries)]
        for kind in KINDS
    }
    notes = [
        f"{kind} left out: not everything has a {_FIELDS[kind]} in {', '.join(names)}."
        for kind, names in lacking.items()
        if names
    ]
    if len(notes) == len(KINDS):
        raise InputError(f"results must all have boxes, or all have masks, as must the truth: {' '.join(notes)}")
    return [kind for kind in KINDS if not lacking[kind]], notes
