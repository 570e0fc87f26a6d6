"""Pairing the detections of two variants, so that one more or less does not shift the comparison of all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from maskjet import coco_rle
from maskjet.detections import Detections
from maskjet.errors import InputError

_IOU = 0.5

DifferenceKind = Literal["dropped", "added", "class swapped", "box moved", "mask changed", "confidence changed"]
KINDS: tuple[DifferenceKind, ...] = (
    *("dropped", "added", "class swapped"),
    *("box moved", "mask changed", "confidence changed"),
)
"""All of them; the first three leave a detection without a counterpart."""


@dataclass
class Pairing:
    """What pairs of results have in common; may hold those of many images. Lists of the matched are in one order."""

    confidences: list[float] = field(default_factory=list)
    """Of the matched ones, as expected."""
    confidence_differences: list[float] = field(default_factory=list)
    """Of the matched ones, absolute."""
    box_differences_px: list[float] = field(default_factory=list)
    """Largest of the four coordinates' differences, of the matched ones."""
    box_ious: list[float] = field(default_factory=list)
    """Of the matched ones."""
    mask_ious: list[float] = field(default_factory=list)
    """Of the matched ones; none where a side has no masks."""
    strings_are_equal: list[bool] = field(default_factory=list)
    """Of the matched ones with masks: whether the RLE is the same, byte for byte."""
    missing_confidences: list[float] = field(default_factory=list)
    """Of the expected ones without a counterpart."""
    extra_confidences: list[float] = field(default_factory=list)
    """Of the actual ones without a counterpart."""
    swapped_confidences: list[float] = field(default_factory=list)
    """Of those among the missing whose place an extra one of another class takes."""

    @property
    def matched(self) -> int:
        """Detections of both."""
        return len(self.confidences)

    @property
    def missing(self) -> int:
        """Expected ones without a counterpart."""
        return len(self.missing_confidences)

    @property
    def extra(self) -> int:
        """Actual ones without a counterpart."""
        return len(self.extra_confidences)

    @property
    def equal_strings(self) -> int:
        """Matched ones whose RLE is the same, byte for byte."""
        return sum(self.strings_are_equal)

    @property
    def found(self) -> int:
        """Detections that either has."""
        return self.matched + self.missing + self.extra

    @property
    def share(self) -> float:
        """Matched ones of all that either has, 0..1; 1 where neither has any."""
        return self.matched / self.found if self.found else 1.0

    def add(self, other: Pairing) -> None:
        """Take in another image's."""
        for name, values in vars(other).items():
            getattr(self, name).extend(values)

    def above(self, confidence: float) -> Pairing:
        """Those with at least this confidence: of the matched the expected one's, of others their own.

        So a detection that one side has just above and the other just below is matched, not lost.
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
    """One thing that is not the same, of one detection."""

    kind: DifferenceKind
    """What happened to it."""
    amount: float
    """How much: pixels of a box, 1 − IoU of a mask, of a confidence the difference; else the confidence."""
    detection: str
    """Which one, as expected; an added one as it is."""
    xyxy: tuple[float, float, float, float]
    """Its box, in pixels."""

    def __str__(self) -> str:
        amounts = {
            "box moved": f" by {self.amount:.2f} px",
            "mask changed": f", IoU {1 - self.amount:.4f}",
            "confidence changed": f" by {self.amount:.4f}",
        }
        return f"{self.kind}{amounts.get(self.kind, '')}: {self.detection}"


def pair(expected: Detections, actual: Detections) -> Pairing:
    """Pair the detections of one image.

    Greedily: each expected one, most confident first, takes the free one of its class whose box overlaps it most, with
    an intersection over union of 0.5 at least.

    Args:
        expected: Of one variant.
        actual: Of the other, for the same image.
    """
    return compare(expected, actual)[0]


def pair_all(expected: Iterable[Detections], actual: Iterable[Detections]) -> Pairing:
    """Pair image by image; the images are the same."""
    result = Pairing()
    for one, other in zip(expected, actual, strict=True):
        result.add(pair(one, other))
    return result


def compare(expected: Detections, actual: Detections) -> tuple[Pairing, list[Difference]]:
    """Pair the detections of one image, as `pair` does, and name everything that is not the same.

    Args:
        expected: Of one variant.
        actual: Of the other, for the same image.

    Returns:
        The pairs, and the differences: those that leave a detection without a counterpart first. A dropped one whose
        place an added one of another class takes is one difference, "class swapped".

    Raises:
        InputError: A confidence or a box is NaN or infinite, or masks are of different sizes or damaged.
    """
    _check_finite(expected, "expected")
    _check_finite(actual, "actual")
    overlap = box_iou(expected.xyxy, actual.xyxy)
    is_alike = expected.class_id[:, None] == actual.class_id
    matches, missing, extra = _take(np.where(is_alike, overlap, 0), range(len(expected)), range(len(actual)))
    swaps, dropped, added = _take(overlap, missing, extra)
    result = Pairing(
        missing_confidences=expected.confidence[missing].tolist(),
        extra_confidences=actual.confidence[extra].tolist(),
        swapped_confidences=[float(expected.confidence[one]) for one, _ in swaps],
    )
    differences = [_difference("dropped", expected.confidence[one], expected, one) for one in dropped]
    differences += [_difference("added", actual.confidence[other], actual, other) for other in added]
    for one, other in swaps:
        becomes = f" is {actual.class_name[other]} {actual.confidence[other]:.2f}"
        differences.append(_difference("class swapped", expected.confidence[one], expected, one, becomes))
    for one, other in matches:
        differences += _measure(result, expected, one, actual, other)
        result.box_ious.append(float(overlap[one, other]))
    return result, sorted(differences, key=lambda difference: (KINDS.index(difference.kind), -difference.amount))


def _check_finite(found: Detections, name: str) -> None:
    """NaN is neither above nor below anything: such a detection would be counted by no threshold, or match any."""
    for what, values in (("confidence", found.confidence), ("xyxy", found.xyxy)):
        if not np.isfinite(values).all():
            raise InputError(f"{what} of {name} must be finite, got {values.tolist()}.")


def _take(
    overlap: NDArray[np.float32], rows: Sequence[int], columns: Sequence[int]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Give each row in turn the free column that overlaps it most: the pairs, the rows and the columns left over."""
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
    """Add a matched pair to the result; yields in what it differs."""
    confidence = float(abs(expected.confidence[one] - actual.confidence[other]))
    moved = float(abs(expected.xyxy[one] - actual.xyxy[other]).max())
    result.confidences.append(float(expected.confidence[one]))
    result.confidence_differences.append(confidence)
    result.box_differences_px.append(moved)
    if moved:
        yield _difference("box moved", moved, expected, one)
    if expected.rle is not None and actual.rle is not None:
        mask, other_mask = expected.rle[one], actual.rle[other]
        is_equal = mask["counts"] == other_mask["counts"]
        iou = 1.0 if is_equal else coco_rle.iou(mask, other_mask)
        result.strings_are_equal.append(is_equal)
        result.mask_ious.append(iou)
        if not is_equal:
            yield _difference("mask changed", 1 - iou, expected, one)
    if confidence:
        yield _difference("confidence changed", confidence, expected, one)


def _difference(kind: DifferenceKind, amount: float, found: Detections, number: int, more: str = "") -> Difference:
    left, top, right, bottom = found.xyxy[number].tolist()
    corners = f"({left:.0f}, {top:.0f}) to ({right:.0f}, {bottom:.0f})"
    name = f"{found.class_name[number]} {found.confidence[number]:.2f} at {corners}{more}"
    return Difference(kind, float(amount), name, (left, top, right, bottom))


def box_iou(boxes: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Intersection over union of boxes xyxy [n, 4] and [m, 4] in pixels: float32 [n, m].

    A box narrower than a pixel counts as a pixel wide: one clamped to the image's border overlaps itself.
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
