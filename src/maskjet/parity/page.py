"""The gate's HTML page: verdict, differences, pictures and settings, for readers who do not know maskjet."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from maskjet.host.files import replacing
from maskjet.host.printing import sanitise
from maskjet.host.tables import shown
from maskjet.parity.check import CheckReport
from maskjet.parity.coco import PrecisionReport
from maskjet.parity.gate import Verdict
from maskjet.parity.pair import DifferenceKind
from maskjet.parity.pictures import Image, draw_worst
from maskjet.parity.record import Record

_WORDS: Mapping[DifferenceKind, str] = {
    "dropped": "found only by the expected side",
    "added": "found only by the actual side",
    "class swapped": "found by both, as different classes",
}
_LONGEST = 300  # longest text of a setting
_MOST_SETTINGS = 100
_MISSING = "(not stated)"
_NO_SETTINGS = ("format", "name", "classes.", "thresholds.", "machine.load", "machine.cores", "machine.torch_threads")
"""Beginnings of the names of what is in a record's first line, but no setting."""


def write_page(
    path: Path,
    found: CheckReport,
    verdicts: Sequence[Verdict],
    records: tuple[Record, Record],
    images: Iterable[Image],
    precision: PrecisionReport | None = None,
) -> None:
    """Write a self-contained HTML file without scripts, with the images of `found.worst`, uint8 [H, W, 3] RGB.

    The expected record comes first; `precision` is the mAP of both. Raises OutputError if the file can't be written,
    and InputError if the images are not those of the records.
    """
    one, other = records
    worst = [(each, one.images[each.number], other.images[each.number]) for each in found.worst]
    page = render(
        "gate.html",
        ("expected", "actual"),
        "Page by maskjet parity gate.",
        _WORDS,
        found=found,
        verdicts=verdicts,
        broken=sum(not verdict.is_kept for verdict in verdicts),
        names=[record.name for record in records],
        precision=precision,
        notes=[*found.notes, *(precision.notes if precision else ())],
        worst=draw_worst(worst, images),
        settings=list_settings(one, other),
    )
    with replacing(path, "report") as temporary:
        temporary.write(page)


def render(name: str, sides: tuple[str, str], maker: str, words: Mapping[DifferenceKind, str], **fields: Any) -> bytes:
    """Render a template of this package, the page's text around the pictures, as HTML.

    `sides` are what expected and actual detections are called, `maker` is the last line, `words` are texts of kinds of
    difference; others are shown with their amount. Among the template's fields is `worst`, of `draw_worst`.
    """
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda name: (files("maskjet.parity") / name).read_text()),
    )
    environment.filters["as_source"] = lambda data: f"data:image/webp;base64,{base64.b64encode(data).decode()}"
    environment.filters["short"] = lambda text: sanitise(str(text))
    environment.filters["number"] = lambda value: shown(value, 3).replace("-", "–")
    return environment.get_template(name).render(sides=sides, maker=maker, words=words, **fields).encode()


def list_settings(expected: Record, actual: Record) -> dict[str, tuple[str, str]]:
    """List settings, machines and versions of two records by name, differing ones first."""
    one, other = (dict(_flatten(record.about)) for record in (expected, actual))
    listed = [(name, (one.get(name, _MISSING), other.get(name, _MISSING))) for name in one | other]
    listed = [each for each in listed if not each[0].startswith(_NO_SETTINGS)]
    return dict(sorted(listed, key=lambda each: each[1][0] == each[1][1])[:_MOST_SETTINGS])


def _flatten(fields: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and texts of all values; nested fields are named by their path."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{parent}{name}.")
        else:
            yield (
                sanitise(f"{parent}{name}"),
                sanitise(value if isinstance(value, str) else json.dumps(value), _LONGEST),
            )
