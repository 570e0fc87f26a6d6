"""Match the detections of two variants by class and box, so that a missing one does not shift others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.masks import coco_rle

_IOU = 0.5
# Largest difference explained by rounding, as a share of the value's range: 1 for a confidence, the image's longer
# side for a coordinate. Each side rounds to float32 at most four times after the logits: a sigmoid's exp, sum and
# quotient, or a box's sigmoid, half side, corner and scale; each time by at most 2**-24 of the range.
_ROUNDING = 2 * 4 * 2**-24

DifferenceKind = Literal["dropped", "added", "class swapped", "box moved", "mask changed", "confidence changed"]
KINDS: tuple[DifferenceKind, ...] = (
    *("dropped", "added", "class swapped"),
    *("box moved", "mask changed", "confidence changed"),
)
"""All kinds of difference; the first three leave a detection without a counterpart."""


@dataclass
class Pairing:
    """Matched and unmatched detections, of one image or many. All lists about matched pairs are in the same order."""

    confidences: list[float] = field(default_factory=list)
    """Confidences of the expected detections in matched pairs."""
    confidence_differences: list[float] = field(default_factory=list)
    """Absolute confidence differences of matched pairs."""
    box_differences_px: list[float] = field(default_factory=list)
    """Largest absolute coordinate difference of each matched pair, in pixels."""
    box_ious: list[float] = field(default_factory=list)
    """Box IoU of each matched pair."""
    mask_ious: list[float] = field(default_factory=list)
    """Mask IoU of each matched pair; empty if a side has no masks."""
    strings_are_equal: list[bool] = field(default_factory=list)
    """Whether the masks of a matched pair have the same RLE, byte for byte; empty if a side has no masks."""
    missing_confidences: list[float] = field(default_factory=list)
    """Confidences of expected detections without a counterpart."""
    extra_confidences: list[float] = field(default_factory=list)
    """Confidences of actual detections without a counterpart."""
    swapped_confidences: list[float] = field(default_factory=list)
    """Confidences of missing detections matched by an extra one of another class."""

    @property
    def matched(self) -> int:
        """Number of matched pairs."""
        return len(self.confidences)

    @property
    def missing(self) -> int:
        """Number of expected detections without a counterpart."""
        return len(self.missing_confidences)

    @property
    def extra(self) -> int:
        """Number of actual detections without a counterpart."""
        return len(self.extra_confidences)

    @property
    def found(self) -> int:
        """Number of matched pairs and unmatched detections."""
        return self.matched + self.missing + self.extra

    @property
    def share(self) -> float:
        """Matched pairs divided by `found`, 0..1; 1 if nothing was found."""
        return self.matched / self.found if self.found else 1.0

    def add(self, other: Pairing) -> None:
        """Append the pairing of another image."""
        for name, values in vars(other).items():
            getattr(self, name).extend(values)

    def above(self, confidence: float) -> Pairing:
        """Keep matched pairs whose expected detection has at least this confidence, and unmatched ones that have it.

        So a detection just above the confidence on one side and just below on the other is not counted as unmatched.
        """
        is_kept = [value >= confidence for value in self.confidences]
        unmatched = ("missing_confidences", "extra_confidences", "swapped_confidences")
        kept = {}
        for name, values in vars(self).items():
            if name in unmatched:
                kept[name] = [value for value in values if value >= confidence]
            else:
                kept[name] = [value for value, keep in zip(values, is_kept, strict=False) if keep]
        return Pairing(**kept)


@dataclass(frozen=True)
class Difference:
    """One difference of one detection."""

    kind: DifferenceKind
    """The kind of difference."""
    amount: float
    """Largest coordinate difference of a box in pixels, 1 - IoU of a mask, or absolute difference of a confidence; for
    the other kinds the detection's confidence."""
    detection: str
    """Class, confidence and box of the expected detection, or of the actual one if it was added."""
    xyxy: tuple[float, float, float, float]
    """Box of that detection, in pixels."""
    is_rounding: bool = False
    """Whether rounding to float32 explains it: a box or confidence differs by a few ULPs, a mask in no pixel."""

    @property
    def change(self) -> str:
        """The kind of difference and its amount."""
        amounts = {
            "box moved": f" by {_at_least(self.amount, 2)} px",
            "mask changed": f", IoU {_below_one(1 - self.amount)}",
            "confidence changed": f" by {_at_least(self.amount, 4)}",
        }
        return f"{self.kind}{amounts.get(self.kind, '')}"

    def __str__(self) -> str:
        return f"{self.change}: {self.detection}"


def _at_least(amount: float, digits: int) -> str:
    """Format an amount; with one significant digit if it would be shown as 0."""
    shown = f"{amount:.{digits}f}"
    return f"{amount:.0e}" if amount and not float(shown) else shown


def _below_one(iou: float) -> str:
    """Format an IoU with four decimals, or more if it would be shown as 1."""
    shown = f"{iou:.4f}"
    return f"1 - {1 - iou:.0e}" if iou < 1 and float(shown) == 1 else shown


def pair(expected: Detections, actual: Detections) -> Pairing:
    """Pair the detections of two variants on one image.

    Greedy, in the order of the expected detections (descending confidence): each takes the free detection of its class
    with the highest box IoU, if that is at least 0.5.
    """
    return compare(expected, actual)[0]


def compare(expected: Detections, actual: Detections) -> tuple[Pairing, list[Difference]]:
    """Pair the detections of one image, as `pair` does, and list all differences.

    Returns:
        The pairs, and the differences, those that leave a detection without a counterpart first. A missing detection
        matched by an extra one of another class is one difference, "class swapped".

    Raises:
        InputError: A confidence or a box is NaN or infinite, or masks have different sizes or are damaged.
    """
    _check_finite(expected, "expected")
    _check_finite(actual, "actual")
    overlap = box_iou(expected.xyxy, actual.xyxy)
    is_alike = expected.class_id[:, None] == actual.class_id
    matches, missing, extra = _match_greedily(np.where(is_alike, overlap, 0), range(len(expected)), range(len(actual)))
    swaps, dropped, added = _match_greedily(overlap, missing, extra)
    result = Pairing(
        missing_confidences=expected.confidence[missing].tolist(),
        extra_confidences=actual.confidence[extra].tolist(),
        swapped_confidences=[float(expected.confidence[one]) for one, _ in swaps],
    )
    differences = [_difference("dropped", expected.confidence[one], expected, one) for one in dropped]
    differences += [_difference("added", actual.confidence[other], actual, other) for other in added]
    for one, other in swaps:
        becomes = f" is {_name(actual, other)} {actual.confidence[other]:.2f}"
        differences.append(_difference("class swapped", expected.confidence[one], expected, one, becomes))
    for one, other in matches:
        differences += _measure(result, expected, one, actual, other)
        result.box_ious.append(float(overlap[one, other]))
    return result, sorted(differences, key=lambda difference: (KINDS.index(difference.kind), -difference.amount))


def _check_finite(found: Detections, name: str) -> None:
    """Check for NaN and infinity: NaN compares false with any threshold, so such a detection would be miscounted."""
    for what, values in (("confidence", found.confidence), ("xyxy", found.xyxy)):
        if not np.isfinite(values).all():
            raise InputError(f"{what} of {name} must be finite, got {values.tolist()}.")


def _match_greedily(
    overlap: NDArray[np.float32], rows: Sequence[int], columns: Sequence[int]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Greedy: match each row with the free column of highest IoU; returns pairs, unmatched rows and columns."""
    pairs, left = [], []
    free = list(columns)
    for row in rows:
        best = max(free, key=lambda column: overlap[row, column], default=-1)
        if best < 0 or overlap[row, best] < _IOU:
            left.append(row)
        else:
            free.remove(best)
            pairs.append((row, best))
    return pairs, left, free


def _measure(result: Pairing, expected: Detections, one: int, actual: Detections, other: int) -> Iterable[Difference]:
    """Add a matched pair to the result; yields its differences."""
    confidence = float(abs(expected.confidence[one] - actual.confidence[other]))
    moved = float(abs(expected.xyxy[one] - actual.xyxy[other]).max())
    result.confidences.append(float(expected.confidence[one]))
    result.confidence_differences.append(confidence)
    result.box_differences_px.append(moved)
    if moved:
        is_rounding = moved <= _ROUNDING * max(expected.image_size)
        yield _difference("box moved", moved, expected, one, is_rounding=is_rounding)
    if expected.rle is not None and actual.rle is not None:
        mask, other_mask = expected.rle[one], actual.rle[other]
        is_equal = mask["counts"] == other_mask["counts"]
        iou = 1.0 if is_equal else coco_rle.iou(mask, other_mask)
        result.strings_are_equal.append(is_equal)
        result.mask_ious.append(iou)
        if not is_equal:
            yield _difference("mask changed", 1 - iou, expected, one, is_rounding=iou == 1)
    if confidence:
        is_rounding = confidence <= _ROUNDING
        yield _difference("confidence changed", confidence, expected, one, is_rounding=is_rounding)


def _difference(
    kind: DifferenceKind, amount: float, found: Detections, number: int, more: str = "", *, is_rounding: bool = False
) -> Difference:
    left, top, right, bottom = found.xyxy[number].tolist()
    corners = f"({left:.0f}, {top:.0f}) to ({right:.0f}, {bottom:.0f})"
    name = f"{_name(found, number)} {found.confidence[number]:.2f} at {corners}{more}"
    return Difference(kind, float(amount), name, (left, top, right, bottom), is_rounding)


def _name(found: Detections, number: int) -> str:
    class_id = int(found.class_id[number])
    return found.class_names.get(class_id, str(class_id))


def box_iou(boxes: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Intersection over union of boxes xyxy [n, 4] and [m, 4] in pixels: float32 [n, m].

    A side shorter than a pixel counts as one pixel, so that a box clamped to the image's border has IoU 1 with itself.
    """
    boxes, others = _thicken(boxes), _thicken(others)
    low, high = np.maximum(boxes[:, None, :2], others[:, :2]), np.minimum(boxes[:, None, 2:], others[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=-1)
    area, other_area = ((each[:, 2:] - each[:, :2]).prod(axis=-1) for each in (boxes, others))
    overlap: NDArray[np.float32] = shared / (area[:, None] + other_area - shared)
    return overlap


def _thicken(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    low, high = boxes[:, :2], boxes[:, 2:]
    missing = np.clip(1 - (high - low), 0, None) / 2
    return np.concatenate((low - missing, high + missing), axis=1)
