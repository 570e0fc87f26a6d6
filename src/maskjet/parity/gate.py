"""The gate for CI: compare the differences between two records with limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from maskjet.checks import check_fraction
from maskjet.errors import InputError
from maskjet.parity import check, coco
from maskjet.parity.record import Record


@dataclass(frozen=True)
class Limits:
    """The largest changes allowed; None sets no limit."""

    max_unmatched: float | None = None
    """Largest share of detections without a counterpart, 0..1."""
    max_dconf: float | None = None
    """Largest confidence difference of a matched pair, 0..1."""
    max_dap: float | None = None
    """Largest difference in mAP, of boxes or of masks, 0..1; needs annotations."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                check_fraction(name, value)


@dataclass(frozen=True)
class Verdict:
    """One limit and the measured value."""

    quantity: str
    """The quantity that is limited, in words."""
    found: float
    """The measured value; NaN if it could not be measured."""
    limit: float
    """The largest value allowed."""

    @property
    def is_kept(self) -> bool:
        """Whether the value is within the limit; NaN never is."""
        return self.found <= self.limit

    def as_dict(self) -> dict[str, Any]:
        """Quantity, measured value (None if it could not be measured), limit, and whether it is kept."""
        found = None if math.isnan(self.found) else self.found
        return {"quantity": self.quantity, "found": found, "limit": self.limit, "is_kept": self.is_kept}

    def __str__(self) -> str:
        return f"{'kept' if self.is_kept else 'BROKEN'}: {self.quantity} {self.found:.4g}, limit {self.limit:g}"


def judge(found: check.CheckReport, precision: coco.PrecisionReport | None, limits: Limits) -> list[Verdict]:
    """Compare a report of comparable records with the limits; one verdict per limit, two for mAP if masks are scored.

    `precision` is the mAP of both, the expected one as baseline; None without annotations.

    Raises:
        InputError: No limit is set, or one on mAP is set without annotations.
    """
    everything = found.measurements[0]
    verdicts = []
    if limits.max_unmatched is not None:
        share = 1 - everything.share
        verdicts.append(Verdict("share of detections without a counterpart", share, limits.max_unmatched))
    if limits.max_dconf is not None:
        largest = everything.confidence_difference.max if everything.matched else math.nan
        verdicts.append(Verdict("largest difference in confidence", largest, limits.max_dconf))
    if limits.max_dap is not None:
        if precision is None:
            raise InputError("max_dap must go with annotations, a data set of the images.")
        actual = str(found.actual["name"])
        verdicts += [_judge_precision(m, limits.max_dap) for m in precision.measurements if m.variant == actual]
    if not verdicts:
        raise InputError("at least one of max_unmatched, max_dconf and max_dap must be given, or check.")
    return verdicts


def check_comparable(expected: Record, actual: Record) -> None:
    """Raise InputError if two records differ in images, thresholds or classes, or neither has a detection."""
    check.check_same_images(expected, actual)
    for mismatch in check.find_mismatches(expected, actual):
        raise InputError(mismatch)


def _judge_precision(m: coco.Precision, limit: float) -> Verdict:
    delta = m.deltas["ap"]
    if delta is None or delta == m.metrics["ap"] == 0:  # nothing to score, or both are 0
        return Verdict(f"difference in {m.kind} mAP, of which both have none,", math.nan, limit)
    return Verdict(f"difference in {m.kind} mAP", abs(delta), limit)
