"""The gate's HTML page: verdict, differences, pictures and settings, for readers who do not know maskjet."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from maskjet.host.files import replacing
from maskjet.host.printing import sanitise
from maskjet.host.tables import shown
from maskjet.parity.check import Agreement, CheckReport
from maskjet.parity.coco import PrecisionReport
from maskjet.parity.gate import Verdict
from maskjet.parity.pair import Difference, DifferenceKind
from maskjet.parity.pictures import Image, draw_close_ups, open_worst
from maskjet.parity.record import Record

_WORDS: Mapping[DifferenceKind, str] = {
    "dropped": "found only by the expected side",
    "added": "found only by the actual side",
    "class swapped": "found by both, as different classes",
    "box moved": "found by both, the box differs",
    "mask changed": "found by both, the mask differs",
    "confidence changed": "found by both, the confidence differs",
}
_KINDS = {"bbox": "Boxes", "segm": "Masks"}
_METRICS = {
    "ap": "Average precision (mAP)",
    "ap50": "at an overlap of 0.5",
    "ap75": "at an overlap of 0.75",
    "ap_small": "of small things",
    "ap_medium": "of medium things",
    "ap_large": "of large things",
}
_LONGEST = 300  # longest text of a setting
_MOST_SETTINGS = 100
_MISSING = "(not stated)"


Rows = Mapping[str, Sequence[str]]
"""Rows of a table: title to the texts of the columns."""


def write_page(
    path: Path,
    found: CheckReport,
    verdicts: Sequence[Verdict],
    records: tuple[Record, Record],
    images: Iterable[Image],
    precision: PrecisionReport | None = None,
) -> None:
    """Write a self-contained HTML file without scripts, below a megabyte for any number and size of images.

    Args:
        path: The file to write.
        found: The comparison.
        verdicts: Limits and measured values; none if nothing was limited.
        records: The records compared, the expected one first.
        images: The images of `found.worst`, uint8 [H, W, 3] RGB.
        precision: mAP of both; None leaves it out.

    Raises:
        OutputError: The file can't be written.
        InputError: The images are not those of the records.
    """
    one, other = records
    settings = list_settings(one, other)
    worst = [(each, one.images[each.number], other.images[each.number]) for each in found.worst]
    page = render(
        "gate.html",
        ("expected", "actual"),
        "Page by maskjet parity gate.",
        found=found,
        verdicts=verdicts,
        broken=sum(not verdict.is_kept for verdict in verdicts),
        names=[record.name for record in records],
        kinds={
            words: [f"{found.kinds[kind] - found.rounded[kind]}", f"{found.rounded[kind] or '–'}"]
            for kind, words in _WORDS.items()
        },
        columns=["All detections", *(f"Confidence {m.confidence:g} or more" for m in found.measurements[1:])],
        sections=_tabulate(found.measurements),
        precision=None if precision is None else _tabulate_precision(precision),
        notes=[*found.notes, *(precision.notes if precision else ())],
        worst=draw_close_ups(open_worst(worst, images), len(found.worst)),
        different={name: texts for name, texts in settings.items() if texts[0] != texts[1]},
        same={name: texts for name, texts in settings.items() if texts[0] == texts[1]},
    )
    with replacing(path, "report") as temporary:
        temporary.write(page)


def render(
    name: str, sides: tuple[str, str], maker: str, words: Callable[[Difference], str] | None = None, **fields: Any
) -> bytes:
    """Render a page as HTML.

    Args:
        name: Template in this package with the page's text around the pictures.
        sides: What expected and actual detections are called.
        maker: Last line of the page.
        words: Formats a difference; None is `describe`.
        **fields: Values for the template, among them `worst`, the pictures of `draw_close_ups`.
    """
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda name: (files("maskjet.parity") / name).read_text()),
    )
    filters: dict[str, Callable[..., Any]] = {
        "as_source": lambda data: f"data:image/webp;base64,{base64.b64encode(data).decode()}",
        "short": lambda text: sanitise(str(text)),
        "words": words or describe,
        "plain": lambda text: text.replace("bbox mAP", "accuracy of boxes (mAP)").replace(
            "segm mAP", "accuracy of masks (mAP)"
        ),
        "amount": show_amount,
        "number": lambda value: shown(value, 3).replace("-", "–"),
        "share": show_share,
    }
    environment.filters |= filters
    return environment.get_template(name).render(sides=sides, maker=maker, **fields).encode()


def describe(difference: Difference) -> str:
    """Describe a difference in words, without the names of kinds."""
    if difference.kind in ("dropped", "added", "class swapped"):
        return _WORDS[difference.kind]
    return difference.change.replace("IoU", "overlap (IoU)")


def show_amount(value: float) -> str:
    """Format a value in four digits; small ones also as "below 0.0001"."""
    if math.isnan(value):
        return "not measured"
    if 0 < abs(value) < 1e-4:
        return f"below 0.0001 ({value:.1e})"
    return f"{value:.4g}"


def show_share(value: float) -> str:
    """Format a share in per cent, with three digits."""
    return "not measured" if math.isnan(value) else f"{100 * value:.3g} %"


def show_overlap(value: float | None) -> str:
    """Format an IoU with four decimals; as 1 only if it is exactly 1."""
    if value is None:
        return "no masks"
    text = f"{value:.4f}"
    return "1 (the same)" if value == 1 else "above 0.9999" if float(text) == 1 else text


def _of_pairs(show: Callable[[Agreement], str]) -> Callable[[Agreement], str]:
    return lambda m: show(m) if m.matched else "no pairs"


_OF_MASKS = "Mask of a pair"
_MEASURED: Mapping[str, Mapping[str, Callable[[Agreement], str]]] = {
    "Detections": {
        "found by both (a pair)": lambda m: f"{m.matched} of {m.matched + m.dropped + m.added} ({show_share(m.share)})",
        "found only by the expected side": lambda m: str(m.dropped),
        "found only by the actual side": lambda m: str(m.added),
        "found by both, as different classes (also counted in the two rows above)": lambda m: str(m.swapped),
    },
    "Confidence of a pair": {
        "average difference": _of_pairs(lambda m: show_amount(m.confidence_difference.mean)),
        "95 % of the differences are at most": _of_pairs(lambda m: show_amount(m.confidence_difference.p95)),
        "largest difference": _of_pairs(lambda m: show_amount(m.confidence_difference.max)),
    },
    "Box of a pair": {
        "95 % of the boxes moved by at most": _of_pairs(lambda m: f"{show_amount(m.box_difference_px.p95)} px"),
        "largest move": _of_pairs(lambda m: f"{show_amount(m.box_difference_px.max)} px"),
        "smallest overlap (IoU)": _of_pairs(lambda m: show_overlap(m.min_box_iou)),
    },
    _OF_MASKS: {
        "average overlap (IoU)": _of_pairs(lambda m: show_overlap(m.mean_mask_iou)),
        "smallest overlap (IoU)": _of_pairs(lambda m: show_overlap(m.min_mask_iou)),
        "the same in every pixel": _of_pairs(lambda m: f"{m.equal_strings} of {m.matched}"),
    },
}


def list_settings(expected: Record, actual: Record) -> dict[str, tuple[str, str]]:
    """List settings, machines and versions of two records, differing ones first."""
    one, other = (dict(_flatten(_settings(record.about))) for record in (expected, actual))
    listed = [(name, (one.get(name, _MISSING), other.get(name, _MISSING))) for name in one | other]
    return dict(sorted(listed, key=lambda each: each[1][0] == each[1][1])[:_MOST_SETTINGS])


def _settings(about: Mapping[str, Any]) -> dict[str, Any]:
    """A record's settings, machine and versions; those of the engine have the names of its flags."""
    shown = {name: value for name, value in about.items() if name not in ("format", "name", "classes", "thresholds")}
    config, machine = (
        found if isinstance(found := shown.pop(name, {}), dict) else {} for name in ("config", "machine")
    )
    machine = {name: value for name, value in machine.items() if name not in ("load", "cores", "torch_threads")}
    return {
        **shown,
        **{f"engine.{name}" if name in shown else name: value for name, value in config.items()},
        **machine,
    }


def _flatten(fields: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and texts of all values; nested fields are named by their path."""
    for name, value in fields.items():
        title = f"{parent}{name}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{title}.")
        else:
            yield sanitise(title), _as_text(value)


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "not set", True: "yes", False: "no"}[value]
    return sanitise(value if isinstance(value, str) else json.dumps(value), _LONGEST)


def _tabulate(measurements: Sequence[Agreement]) -> dict[str, Rows]:
    """The measurements as rows by section: one column per confidence."""
    has_masks = any(m.mean_mask_iou is not None for m in measurements)
    return {
        title: {name: [show(m) for m in measurements] for name, show in rows.items()}
        for title, rows in _MEASURED.items()
        if title != _OF_MASKS or has_masks
    }


def _tabulate_precision(report: PrecisionReport) -> dict[str, Rows]:
    """The scores of both variants, and their difference, by kind."""
    sections: dict[str, Rows] = {}
    for one, other in zip(report.measurements[::2], report.measurements[1::2], strict=True):
        rows = {}
        for metric, name in _METRICS.items():
            scores = [shown(m.metrics[metric], 4).replace("-", "–") for m in (one, other)]
            rows[name] = [*scores, _signed(other.deltas[metric])]
        sections[_KINDS[one.kind]] = rows
    return sections


def _signed(value: float | None) -> str:
    if not value:
        return "–" if value is None else "0"
    return f"{value:+.4f}".replace("-", "−")
