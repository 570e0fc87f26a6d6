"""The gate for CI: compare two dumps with limits, and write one HTML page for readers who do not know maskjet."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2

from maskjet.errors import InputError
from maskjet.files import replacing
from maskjet.parity import check, coco
from maskjet.parity.dump import Dump
from maskjet.parity.images import Images
from maskjet.parity.pictures import draw_worst, encode


@dataclass(frozen=True)
class Limits:
    """The largest changes allowed; None sets no limit."""

    max_unmatched: float | None = None
    """Largest share of detections without a counterpart, 0..1."""
    max_dconf: float | None = None
    """Largest confidence difference of a matched pair, 0..1."""
    max_dap: float | None = None
    """Largest difference in mAP, of boxes or of masks, 0..1; needs a truth."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name} must be 0..1, got {value}.")


@dataclass(frozen=True)
class Verdict:
    """One limit and the measured value."""

    what: str
    """Name of the quantity, for readers."""
    found: float
    """The measured value; NaN if it could not be measured."""
    limit: float
    """The largest value allowed."""

    @property
    def is_kept(self) -> bool:
        """Whether the value is within the limit; NaN never is."""
        return self.found <= self.limit

    def __str__(self) -> str:
        return f"{'kept' if self.is_kept else 'BROKEN'}: {self.what} {self.found:.4g}, limit {self.limit:g}"


def judge(found: check.CheckReport, precision: coco.PrecisionReport | None, limits: Limits) -> list[Verdict]:
    """Compare a report with the limits; one verdict per limit, two for mAP if masks are scored.

    Args:
        found: The comparison of the two dumps; its first measurement counts all detections.
        precision: The mAP of both, the expected one as baseline; None without a truth.
        limits: The limits; at least one must be set.

    Raises:
        InputError: No limit is set, one on mAP is set without a truth, or neither dump has a detection.
    """
    everything = found.measurements[0]
    if found.images < 1 or everything.matched + everything.dropped + everything.added < 1:
        raise InputError(
            f"the dumps must have detections to compare, {found.expected['name']!r} and {found.actual['name']!r} have "
            f"none on {found.images} images; a lower --threshold of parity dump finds more."
        )
    verdicts = []
    if limits.max_unmatched is not None:
        verdicts.append(
            Verdict("share of detections without a counterpart", 1 - everything.share, limits.max_unmatched)
        )
    if limits.max_dconf is not None:
        largest = everything.confidence_difference.max if everything.matched else math.nan
        verdicts.append(Verdict("largest difference in confidence", largest, limits.max_dconf))
    if limits.max_dap is not None:
        if precision is None:
            raise InputError("max_dap needs a truth: generated traffic, or a COCO data set.")
        actual = str(found.actual["name"])
        verdicts += [_judge_precision(m, limits.max_dap) for m in precision.measurements if m.variant == actual]
    if not verdicts:
        raise InputError("at least one of max_unmatched, max_dconf and max_dap must be given.")
    return verdicts


def check_comparable(expected: Dump, actual: Dump) -> None:
    """Check that two dumps can be compared fairly.

    Raises:
        InputError: They are of different images, thresholds or classes, or neither has a detection.
    """
    expected.check_same_images(actual)
    for mismatch in check.find_mismatches(expected, actual):
        raise InputError(mismatch)


def _judge_precision(m: coco.Precision, limit: float) -> Verdict:
    if m.delta is None or m.delta == m.ap == 0:  # nothing to score, or both are 0: no difference was measured
        return Verdict(f"difference in {m.kind} mAP, of which both have none,", math.nan, limit)
    return Verdict(f"difference in {m.kind} mAP", abs(m.delta), limit)


def write_page(
    path: Path,
    found: check.CheckReport,
    verdicts: Sequence[Verdict],
    dumps: tuple[Dump, Dump],
    precision: coco.PrecisionReport | None = None,
    images: Images | None = None,
) -> None:
    """Write one HTML file with embedded pictures, for readers who do not know maskjet.

    Args:
        path: The file to write.
        found: The comparison of the two dumps.
        verdicts: The verdicts of `judge`.
        dumps: The expected and the actual dump.
        precision: The mAP of both; None leaves it out.
        images: The images of both dumps; may be left out for generated streets.

    Raises:
        OutputError: The file can't be written.
        SourceError: An image can't be read.
        InputError: The images are not given, or are not those of the dumps.
    """
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(
        (files("maskjet.parity") / "page.html").read_text()
    )
    pictures = [
        (image, base64.b64encode(encode(picture, ".jpg")).decode())
        for image, picture in draw_worst(found, *dumps, images)
    ]
    header, *rows = found.rows()
    page = template.render(
        found=found,
        verdicts=verdicts,
        is_kept=all(verdict.is_kept for verdict in verdicts),
        header=header[2:],
        rows=[row[2:] for row in rows],
        sides=[("expected", dumps[0]), ("actual", dumps[1])],
        precision=None if precision is None else precision.rows(),
        notes=[*found.notes, *(precision.notes if precision else ())],
        pictures=pictures,
    )
    with replacing(path, "html") as part:
        part.write(page.encode())
