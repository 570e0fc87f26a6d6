"""Pairing the detections of two variants, so that one more or less does not shift the comparison of all others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections

_IOU = 0.5


@dataclass
class Pairing:
    """What pairs of results have in common; may hold those of many images."""

    matched: int = 0
    """Detections of both."""
    missing: int = 0
    """Expected ones without a counterpart."""
    extra: int = 0
    """Actual ones without a counterpart."""
    confidence_differences: list[float] = field(default_factory=list)
    """Of the matched ones."""
    box_differences_px: list[float] = field(default_factory=list)
    """Largest of the four coordinates' differences, of the matched ones."""
    mask_ious: list[float] = field(default_factory=list)
    """Of the matched ones with masks."""
    equal_strings: int = 0
    """Matched ones whose RLE is the same, byte for byte."""

    @property
    def share(self) -> float:
        """Matched ones of all that either has, 0..1; 1 where neither has any."""
        return self.matched / self.found if self.found else 1.0

    @property
    def found(self) -> int:
        """Detections that either has."""
        return self.matched + self.missing + self.extra

    def add(self, other: Pairing) -> None:
        """Take in another image's."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def pair(expected: Detections, actual: Detections) -> Pairing:
    """Pair the detections of one image.

    Greedily: each expected one, most confident first, takes the free one of its class whose box overlaps it most, with
    an intersection over union of 0.5 at least.

    Args:
        expected: Of one variant.
        actual: Of the other, for the same image.
    """
    result = Pairing()
    overlap = np.where(expected.class_id[:, None] == actual.class_id, box_iou(expected.xyxy, actual.xyxy), 0)
    for one in range(len(expected)):
        other = int(overlap[one].argmax()) if len(actual) else 0
        if not len(actual) or overlap[one, other] < _IOU:
            result.missing += 1
            continue
        overlap[:, other] = 0
        result.matched += 1
        result.confidence_differences.append(float(abs(expected.confidence[one] - actual.confidence[other])))
        result.box_differences_px.append(float(abs(expected.xyxy[one] - actual.xyxy[other]).max()))
        if expected.rle is not None and actual.rle is not None:
            is_equal = expected.rle[one]["counts"] == actual.rle[other]["counts"]
            result.equal_strings += is_equal
            result.mask_ious.append(1.0 if is_equal else _mask_iou(expected[[one]], actual[[other]]))
    result.extra = len(actual) - result.matched
    return result


def pair_all(expected: Iterable[Detections], actual: Iterable[Detections]) -> Pairing:
    """Pair image by image; the images are the same."""
    result = Pairing()
    for one, other in zip(expected, actual, strict=True):
        result.add(pair(one, other))
    return result


def box_iou(boxes: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Intersection over union of boxes xyxy [n, 4] and [m, 4]: float32 [n, m]; 0 where both are empty."""
    low, high = np.maximum(boxes[:, None, :2], others[:, :2]), np.minimum(boxes[:, None, 2:], others[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=-1)
    area, other_area = ((each[:, 2:] - each[:, :2]).prod(axis=-1) for each in (boxes, others))
    union = area[:, None] + other_area - shared
    overlap: NDArray[np.float32] = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return overlap


def _mask_iou(one: Detections, other: Detections) -> float:
    mask, other_mask = one.masks()[0], other.masks()[0]
    union = int((mask | other_mask).sum())
    return int((mask & other_mask).sum()) / union if union else 1.0
