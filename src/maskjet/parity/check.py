"""Compare two records of the same images: matched detections, size of differences, and the worst images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskjet.checks import check_fraction
from maskjet.errors import InputError
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.host.printing import printable
from maskjet.host.tables import shown
from maskjet.parity.pair import KINDS, Difference, Pairing, compare
from maskjet.parity.record import Record

HEADER = (
    *("expected", "actual", "confidence ≥", "matched", "dropped", "added", "swapped"),
    *("Δconf mean", "p95", "max", "Δbox px p95", "max", "box IoU min", "mask IoU mean", "min", "equal RLE"),
)
_WORST, _PRINTED = 10, 3  # worst images, and printed differences of one


@dataclass(frozen=True)
class Spread:
    """Summary of a distribution: mean, 95th percentile, maximum."""

    mean: float
    """The arithmetic mean."""
    p95: float
    """The 95th percentile."""
    max: float
    """The largest value."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise values; without any, all three numbers are 0."""
        found = np.asarray(values or [0.0])
        return cls(float(found.mean()), float(np.quantile(found, 0.95)), float(found.max()))


@dataclass(frozen=True)
class Agreement:
    """Agreement of detections at or above a confidence."""

    confidence: float
    """The lowest confidence counted; a matched pair counts by its expected detection."""
    matched: int
    """Matched pairs: detections that both variants have."""
    dropped: int
    """Expected detections without a counterpart."""
    added: int
    """Actual detections without a counterpart."""
    swapped: int
    """Dropped detections whose box an added one of another class overlaps."""
    share: float
    """Matched pairs divided by matched, dropped and added together, 0..1; 1 without detections."""
    confidence_difference: Spread
    """Absolute confidence differences of the matched pairs."""
    box_difference_px: Spread
    """Largest absolute coordinate difference of each matched pair, in pixels."""
    mean_box_iou: float
    """Mean box IoU of the matched pairs; 1 without any."""
    min_box_iou: float
    """Smallest box IoU of a matched pair; 1 without any."""
    mean_mask_iou: float | None
    """Mean mask IoU of the matched pairs; None without masks or pairs."""
    min_mask_iou: float | None
    """Smallest mask IoU of a matched pair; None without masks or pairs."""
    equal_strings: int
    """Matched pairs whose masks have the same RLE, byte for byte."""

    @classmethod
    def of(cls, pairs: Pairing, confidence: float) -> Agreement:
        """Summarise the pairs of all images that reach a confidence."""
        kept = pairs.above(confidence)
        return cls(
            confidence=confidence,
            matched=kept.matched,
            dropped=kept.missing,
            added=kept.extra,
            swapped=len(kept.swapped_confidences),
            share=kept.share,
            confidence_difference=Spread.of(kept.confidence_differences),
            box_difference_px=Spread.of(kept.box_differences_px),
            mean_box_iou=float(np.mean(kept.box_ious or [1.0])),
            min_box_iou=min(kept.box_ious, default=1.0),
            mean_mask_iou=float(np.mean(kept.mask_ious)) if kept.mask_ious else None,
            min_mask_iou=min(kept.mask_ious, default=None),
            equal_strings=sum(kept.strings_are_equal),
        )


@dataclass(frozen=True)
class ChangedImage:
    """An image on which two records differ."""

    number: int
    """The image's position in the records."""
    name: str
    """The image's name."""
    differences: Sequence[Difference]
    """Differences beyond rounding; those that leave a detection without a counterpart come first."""


@dataclass(frozen=True, kw_only=True)
class CheckReport(measuring.MeasuredReport):
    """Comparison of two variants; `measurements` has one entry per confidence."""

    expected: Mapping[str, Any]
    """`Record.about` of the reference."""
    actual: Mapping[str, Any]
    """`Record.about` of the variant compared with the reference."""
    images: int
    """Number of images compared."""
    other_counts: int
    """Images on which the variants have different numbers of detections."""
    same_images: int
    """Images whose detections are identical, bit for bit."""
    kinds: Mapping[str, int]
    """Number of differences of each kind in `pair.KINDS`."""
    rounded_images: int
    """Images whose detections differ, but by no more than rounding explains; see `pair.Difference.is_rounding`."""
    rounded: Mapping[str, int]
    """Differences of each kind that rounding explains; `kinds` includes them, `worst` does not."""
    worst: Sequence[ChangedImage]
    """The ten images that differ most, the worst first."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per confidence."""
        rows: list[tuple[str, ...]] = [HEADER]
        for m in self.measurements:
            conf, box, has_masks = m.confidence_difference, m.box_difference_px, m.mean_mask_iou is not None
            rows.append(
                (
                    *(str(self.expected["name"]), str(self.actual["name"]), f"{m.confidence:g}"),
                    *(f"{m.matched} ({m.share:.2%})", *map(str, (m.dropped, m.added, m.swapped))),
                    *(f"{value:.1e}" for value in (conf.mean, conf.p95, conf.max)),
                    *(f"{value:.3f}" for value in (box.p95, box.max, m.min_box_iou)),
                    *(shown(value, 5) for value in (m.mean_mask_iou, m.min_mask_iou)),
                    f"{m.equal_strings} of {m.matched}" if has_masks else "-",
                )
            )
        return rows

    def __str__(self) -> str:
        counts = [f"{self.same_images} the same bit for bit"]
        counts += [f"{self.rounded_images} but for rounding"] if self.rounded_images else []
        kinds = [self._count(kind) for kind, count in self.kinds.items() if count]
        lines = [
            super().__str__(),
            f"{self.images} images: {', '.join(counts)}, {self.other_counts} with another count",
            ", ".join(kinds) or "nothing differs",
        ]
        for image in self.worst:
            more = len(image.differences[_PRINTED:])
            named = [f"  {difference}" for difference in image.differences[:_PRINTED]]
            lines += [f"{printable(image.name)}:", *named, *([f"  and {more} more"] if more else [])]
        return "\n".join(lines)

    def _count(self, kind: str) -> str:
        rounded = f" ({self.rounded[kind]} within rounding)" if self.rounded[kind] else ""
        return f"{kind}: {self.kinds[kind]}{rounded}"


def check(expected: Record, actual: Record, *, confidences: Sequence[float] = ()) -> CheckReport:
    """Compare the detections of two variants, the first the reference, image by image.

    All detections are counted, and those from each of the confidences again. Raises InputError if the records are of
    different images, or a confidence is not 0..1.
    """
    for confidence in confidences:
        check_fraction("confidence", confidence)
    check_same_images(expected, actual)
    pairs, kinds, rounded = Pairing(), Counter[str](), Counter[str]()
    changed: dict[int, list[Difference]] = {}
    other_counts = same_images = 0
    for number, (one, other) in enumerate(zip(expected.images, actual.images, strict=True)):
        found, differences = compare(one.found, other.found)
        pairs.add(found)
        kinds.update(difference.kind for difference in differences)
        rounded.update(difference.kind for difference in differences if difference.is_rounding)
        other_counts += len(one.found) != len(other.found)
        same_images += not differences
        if changes := [difference for difference in differences if not difference.is_rounding]:
            changed[number] = changes
    lowest = max(min(record.thresholds.values()) for record in (expected, actual))
    return CheckReport(
        machine=describe_machine(),
        measurements=[Agreement.of(pairs, confidence) for confidence in sorted({lowest, *confidences})],
        notes=[*find_mismatches(expected, actual), *_tell_skipped(expected), *_tell_skipped(actual)],
        expected=expected.about,
        actual=actual.about,
        images=len(expected.images),
        other_counts=other_counts,
        same_images=same_images,
        kinds={kind: kinds[kind] for kind in KINDS},
        rounded_images=len(expected.images) - same_images - len(changed),
        rounded={kind: rounded[kind] for kind in KINDS},
        worst=rank_images([image.name for image in expected.images], changed),
    )


def check_same_images(expected: Record, actual: Record) -> None:
    """Raise InputError, which names the first difference, unless two records are of the same images, bit for bit."""
    counts = len(expected.images), len(actual.images)
    if counts[0] != counts[1]:
        raise InputError(
            f"records must be of the same images, {expected.name!r} has {counts[0]} and {actual.name!r} {counts[1]}."
        )
    for number, (one, other) in enumerate(zip(expected.images, actual.images, strict=True)):
        if (one.digest, one.found.image_size) != (other.digest, other.found.image_size):
            names = f"{one.name!r} and {other.name!r}"
            raise InputError(f"records must be of the same images, number {number} is not: {names} have other pixels.")


def rank_images(names: Sequence[str], changed: Mapping[int, Sequence[Difference]]) -> list[ChangedImage]:
    """Find the ten images that differ most, worst first, from names and differences by position."""
    worst = sorted(changed.items(), key=lambda entry: severity(entry[1]), reverse=True)[:_WORST]
    return [ChangedImage(number, names[number], found) for number, found in worst]


def find_mismatches(expected: Record, actual: Record) -> list[str]:
    """List reasons why comparing two records would be unfair, as sentences; empty if fair."""
    found = []
    for what in ("thresholds", "classes"):
        one, other = expected.about[what], actual.about[what]
        key = next((key for key in [*one, *other] if one.get(key) != other.get(key)), None)
        if key is not None:
            found.append(
                f"records must be of the same {what}, {key} is {one.get(key)!r} in {expected.name!r} and "
                f"{other.get(key)!r} in {actual.name!r}: detections would be missing on one side."
            )
    if not any(len(image.found) for record in (expected, actual) for image in record.images):
        found.append(
            f"records must have detections to compare, {expected.name!r} and {actual.name!r} have none on "
            f"{len(expected.images)} images; a lower --threshold of maskjet run finds more."
        )
    return found


def _tell_skipped(record: Record) -> list[str]:
    """A sentence on the images that a record lacks, if any."""
    if not record.skipped:
        return []
    named = "; ".join(record.skipped[:_PRINTED]) + ("; ..." if len(record.skipped) > _PRINTED else "")
    return [f"{record.name!r} is without {len(record.skipped)} images that could not be read: {printable(named)}"]


def severity(differences: Sequence[Difference]) -> tuple[float, ...]:
    """Sort key of a changed image, or of a changed detection.

    First the summed confidences of detections without a counterpart, then the largest change of a mask, of a
    confidence and of a box.
    """
    lost = [difference.amount for difference in differences if difference.kind in KINDS[:3]]
    largest = {kind: max((d.amount for d in differences if d.kind == kind), default=0.0) for kind in KINDS}
    return (sum(lost), largest["mask changed"], largest["confidence changed"], largest["box moved"])
