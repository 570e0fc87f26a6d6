"""COCO mAP of variants side by side, with confidence intervals of their differences.

faster-coco-eval matches and scores. The intervals come from a paired bootstrap: images are drawn with replacement, the
same ones for every variant, and their matches are scored again; nothing is matched twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet import measured
from maskjet.errors import InputError, UnsupportedError
from maskjet.extras import require
from maskjet.machine import describe_machine
from maskjet.parity import RESAMPLES
from maskjet.parity.coco_files import Entry, check_masks, check_results, check_truth, copy_results, copy_truth
from maskjet.parity.numbering import find_mismatches
from maskjet.tables import shown

KINDS = ("bbox", "segm")
"""Kinds of average precision: that of boxes, and that of masks."""
_FIELDS = {"bbox": "bbox", "segm": "segmentation"}
METRICS = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
"""Fields of `Precision`, in the order of COCO's summary."""
_QUANTILES = (0.025, 0.975)
_MOST_RESAMPLES = 100_000  # the draws of 5,000 images then take 4 GB


@dataclass(frozen=True)
class Precision:
    """One variant, one kind. Average precisions are 0..1, and None where the truth has nothing of that size."""

    variant: str
    """The variant's name."""
    kind: str
    """One of `KINDS`."""
    ap: float | None
    """Average precision: the mean over classes and IoU thresholds 0.5, 0.55 .. 0.95."""
    ap50: float | None
    """AP at an IoU threshold of 0.5."""
    ap75: float | None
    """AP at an IoU threshold of 0.75."""
    ap_small: float | None
    """AP of things smaller than 32² pixels."""
    ap_medium: float | None
    """AP of things of 32² to 96² pixels."""
    ap_large: float | None
    """AP of things larger than 96² pixels."""
    deltas: Mapping[str, float | None]
    """Difference to the baseline (this variant minus the baseline) by metric."""
    delta_low: float | None
    """Lower end of the AP difference's 95 % interval; None for the baseline, and without resamples."""
    delta_high: float | None
    """Upper end of the AP difference's 95 % interval; None for the baseline, and without resamples."""

    @property
    def delta(self) -> float | None:
        """AP minus the baseline's."""
        return self.deltas["ap"]

    @property
    def is_noise(self) -> bool | None:
        """Whether the AP difference's interval contains 0; None without an interval."""
        return None if self.delta_low is None or self.delta_high is None else self.delta_low <= 0 <= self.delta_high


@dataclass(frozen=True, kw_only=True)
class PrecisionReport(measured.MeasuredReport):
    """All variants, kind by kind."""

    measurements: Sequence[Precision]
    """One entry per kind and variant, sorted by kind, then in the order of the results."""
    baseline: str
    """The variant that the others are compared with."""
    images: int
    """Number of images in the truth."""
    resamples: int
    """Bootstrap resamples per interval."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""
        deltas = ("ΔAP", "95 % interval", "Δ50", "Δ75", "ΔS", "ΔM", "ΔL")
        rows: list[tuple[str, ...]] = [("variant", "kind", "AP", "50", "75", "S", "M", "L", *deltas)]
        for m in self.measurements:
            scores = (shown(getattr(m, metric), 4) for metric in METRICS)
            delta, *others = (_signed(m.deltas[metric]) for metric in METRICS)
            rows.append((m.variant, m.kind, *scores, delta, self._interval(m), *others))
        return rows

    def _interval(self, m: Precision) -> str:
        if m.variant == self.baseline:
            return "baseline"
        if m.is_noise is None:
            return "-"
        if m.delta_low == m.delta_high == 0:
            return "the same"
        return f"{_signed(m.delta_low)}..{_signed(m.delta_high)}{', noise' if m.is_noise else ''}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def evaluate(
    truth: Entry,
    results: Mapping[str, Sequence[Entry]],
    *,
    baseline: str | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    on_progress: Callable[[], object] = lambda: None,
) -> PrecisionReport:
    """Score variants against the truth, and each against the baseline.

    Equal to pycocotools' COCOeval. In mask AP a detection's size is its mask's area, as with COCO's own results files,
    which have no boxes beside masks. Intervals are those of a paired bootstrap: each resample is a row of
    `numpy.random.default_rng(seed).integers(0, images, (resamples, images))`, positions in the order of the images'
    ids, the same for every variant. Neither truth nor results are changed.

    Args:
        truth: A COCO data set: images, categories, annotations.
        results: COCO results by variant: image_id, category_id, score, and bbox (x, y, width, height), segmentation, a
            compressed RLE, or both. A kind is scored only if truth and all variants have it.
        baseline: A key of results; None takes the first.
        resamples: Bootstrap resamples per interval; 0 leaves the intervals out.
        seed: Seed of the resamples.
        on_progress: Called `steps` times.

    Raises:
        InputError: An argument is invalid, or a result is of an image or category that the truth lacks.
        MissingDependencyError: faster-coco-eval is not installed.
        UnsupportedError: Resampling does not work with this version of faster-coco-eval.
    """
    if not 0 <= resamples <= _MOST_RESAMPLES:
        raise InputError(f"resamples must be 0 to {_MOST_RESAMPLES:,}, got {resamples}.")
    kinds, notes = _check(truth, results)
    if baseline is None:
        baseline = next(iter(results))
    if baseline not in results:
        raise InputError(f"baseline must be one of {list(results)}, got {baseline!r}.")
    library = require("faster_coco_eval", extra="coco", purpose="COCO mAP")
    if "segm" in kinds:
        check_masks(truth, results)
    index = library.COCO(copy_truth(truth))
    images = len(index.imgs)
    draws = np.random.default_rng(seed).integers(0, images, (_count_draws(results, resamples), images))
    measurements = []
    for kind in kinds:
        scores, samples = {}, {}
        for variant, entries in results.items():
            matched = _Matched(library, index, copy_results(entries, kind), kind)
            on_progress()
            scores[variant], samples[variant] = matched.scores, matched.resample(draws, on_progress)
        measurements += [_compare(name, kind, baseline, scores, samples) for name in results]
    return PrecisionReport(
        machine=describe_machine(),
        measurements=measurements,
        notes=[*notes, *find_mismatches(truth, results)],
        baseline=baseline,
        images=images,
        resamples=resamples,
    )


def steps(truth: Entry, results: Mapping[str, Sequence[Entry]], *, resamples: int = RESAMPLES) -> int:
    """Count the on_progress calls of `evaluate`: one per kind and variant and, with several variants, one per resample.

    Raises InputError as `evaluate` does.
    """
    kinds, _ = _check(truth, results)
    return len(kinds) * len(results) * (1 + _count_draws(results, resamples))


class _Matched:
    """A variant's detections matched with the truth: scored by `METRICS`, and ready to be scored on resamples."""

    def __init__(self, library: Any, truth: Any, entries: list[dict[str, Any]], kind: str) -> None:
        nothing = {**truth.dataset, "annotations": []}  # loadRes of faster-coco-eval 1.6.0 takes no empty list
        found = truth.loadRes(entries) if entries else library.COCO(nothing)
        self._version = library.__version__
        options = {"print_function": lambda *_: None, "separate_eval": True}
        self._evaluator = library.COCOeval_faster(truth, found, kind, **options)
        self._evaluator.run()
        self.scores = [_as_score(score) for score in self._evaluator.stats[: len(METRICS)]]

    def resample(self, draws: NDArray[np.int64], on_progress: Callable[[], object]) -> NDArray[np.float64]:
        """AP of each row of draws [draws, images]: float64 [draws], NaN where the truth has nothing on those images."""
        if not len(draws):
            return np.empty(0)
        # The evaluator keeps its matches as a list by category, area range and image. Only the first range (all areas)
        # and one limit of detections are resampled: a twelfth of the work.
        evaluator, params = self._evaluator, self._evaluator.params
        cells: NDArray[Any] = np.empty(len(evaluator._evalImgs_cpp), dtype=object)
        cells[:] = evaluator._evalImgs_cpp
        cells = cells.reshape(len(params.catIds), len(params.areaRng), -1)[:, 0].copy()
        params.areaRng, params.areaRngLbl = params.areaRng[:1], params.areaRngLbl[:1]
        params.maxDets = params.maxDets[-1:]
        evaluator._paramsEval = params

        def score_draw(draw: NDArray[np.int64]) -> float | None:
            evaluator._evalImgs_cpp = cells[:, draw].ravel().tolist()
            evaluator.accumulate()
            return _as_score(evaluator._summarize(1))

        expected, actual = self.scores[0], score_draw(np.arange(cells.shape[1]))
        if actual != expected:
            raise UnsupportedError(
                f"resamples must be 0 with faster-coco-eval {self._version}: "
                f"each image drawn once gives an AP of {actual}, not {expected}."
            )
        found = []
        for draw in draws:
            found.append(score_draw(draw))
            on_progress()
        return np.array(found, dtype=np.float64)


def _as_score(score: float) -> float | None:
    """Turn COCO's -1, which means nothing to score, into None."""
    return float(score) if score >= 0 else None


def _compare(
    variant: str,
    kind: str,
    baseline: str,
    scores: Mapping[str, Sequence[float | None]],
    samples: Mapping[str, NDArray[np.float64]],
) -> Precision:
    own, others = (dict(zip(METRICS, scores[name], strict=True)) for name in (variant, baseline))
    deltas = {
        metric: None if score is None or (other := others[metric]) is None else score - other
        for metric, score in own.items()
    }
    low, high = None, None
    drawn = samples[variant] - samples[baseline]
    drawn = drawn[~np.isnan(drawn)]
    if variant != baseline and len(drawn):
        low, high = (float(bound) for bound in np.quantile(drawn, _QUANTILES))
    return Precision(variant, kind, **own, deltas=deltas, delta_low=low, delta_high=high)


def _count_draws(results: Mapping[str, Sequence[Entry]], resamples: int) -> int:
    return resamples if len(results) > 1 else 0


def _check(truth: Entry, results: Mapping[str, Sequence[Entry]]) -> tuple[list[str], list[str]]:
    """Check truth and results, but not the masks; returns the kinds that can be scored, and a note if one can't."""
    check_truth(truth)
    check_results(truth, results)
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
