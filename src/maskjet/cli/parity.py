"""The command maskjet parity gate, which compares different ways of running a detector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maskjet.cli.flags import add_command
from maskjet.cli.options import ReportOption, option, print_result, progress, switch
from maskjet.errors import InputError
from maskjet.host.files import is_same_file, write_json
from maskjet.host.printing import printable

if TYPE_CHECKING:
    from maskjet.parity.check import CheckReport
    from maskjet.parity.coco import PrecisionReport
    from maskjet.parity.record import Record
    from maskjet.sources.images import Image

_EXAMPLES = """
# Does bfloat16 find the same? Compare what maskjet run --record has written.
maskjet parity gate a.jsonl b.jsonl --max-unmatched 0.05 --max-dconf 0.2
maskjet parity gate a.jsonl b.jsonl --check
"""
_GATE_EXAMPLES = """
maskjet parity gate a.jsonl b.jsonl --max-unmatched 0.05 --max-dconf 0.2
maskjet parity gate a.jsonl b.jsonl --check --images frames --report page.html
maskjet parity gate a.jsonl b.jsonl --annotations streets --max-dap 0.01
"""

parity_app = typer.Typer(
    no_args_is_help=True, help="Check that another model, setting or machine finds the same.", epilog=_EXAMPLES
)
_EXIT_BROKEN = 1


@add_command(parity_app, _GATE_EXAMPLES, "gate")
def parity_gate(
    expected: Annotated[
        Path, typer.Argument(metavar="EXPECTED", help="JSON lines that maskjet run --record wrote, the reference.")
    ],
    actual: Annotated[Path, typer.Argument(metavar="ACTUAL", help="Others, of the same images.")],
    *,
    max_unmatched: Annotated[
        float | None, option("NUMBER", "Largest share of detections without a counterpart, 0 to 1.")
    ] = None,
    max_dconf: Annotated[float | None, option("NUMBER", "Largest difference in confidence of a pair, 0 to 1.")] = None,
    max_dap: Annotated[
        float | None, option("NUMBER", "Largest difference in mAP, 0 to 1; needs --annotations.")
    ] = None,
    check: Annotated[
        bool, switch("--check", "Compare without limits: a difference is a result, not an error.")
    ] = False,
    confidence: Annotated[
        list[float] | None, option("NUMBER", "Count also from this confidence up. May be repeated.")
    ] = None,
    annotations: Annotated[
        Path | None, option("FOLDER", "A data set of the images, as maskjet val takes it, for COCO mAP of both.")
    ] = None,
    images: Annotated[
        str | None, option("SOURCE", "The images, as they were given to maskjet run, for the report's pictures.")
    ] = None,
    report: Annotated[Path | None, option("PATH", "An HTML page with tables and pictures of the worst images.")] = None,
    out: ReportOption = None,
) -> None:
    """Compare what two runs found; fail with exit code 1 if they differ too much, for CI."""
    from maskjet.parity import gate
    from maskjet.parity.check import check as compare
    from maskjet.parity.page import write_page
    from maskjet.parity.record import read_record

    if is_same_file(expected, actual):
        raise InputError(f"actual must be another file than expected, got {str(actual)!r} twice.")
    for name, path in {"report": report, "out": out}.items():
        if path is not None and (is_same_file(path, expected) or is_same_file(path, actual)):
            raise InputError(f"{name} must not be a file that is compared, got {str(path)!r}.")
    if report is not None and images is None:
        raise InputError("report must go with --images, for its pictures: what a record names is not opened.")
    limits = gate.Limits(max_unmatched, max_dconf, max_dap)
    with progress("comparing", None):
        records = read_record(expected), read_record(actual)
        if records[0].name == records[1].name:
            records = _name(records[0], expected), _name(records[1], actual)
        if not check:
            gate.check_comparable(*records)
        found = compare(*records, confidences=confidence or ())
        precision = None if annotations is None else _score(records, annotations)
        verdicts = [] if check else gate.judge(found, precision, limits)
        if report is not None:
            write_page(report, found, verdicts, records, _read_images(str(images), found, records[0]), precision)
    if out is not None:
        write_json(
            out,
            {
                "verdicts": [verdict.as_dict() for verdict in verdicts],
                "comparison": found.as_dict(),
                "precision": precision and precision.as_dict(),
            },
        )
    for result in (found, precision, *verdicts):
        if result is not None:
            print_result(result, to_stdout=True)
    for path in (report, out):
        if path is not None:
            print_result(f"wrote {path}")
    for note in (*found.notes, *(precision.notes if precision else ())):
        print_result(f"note: {note}")
    if not all(verdict.is_kept for verdict in verdicts):
        raise typer.Exit(_EXIT_BROKEN)


def _name(record: Record, path: Path) -> Record:
    return replace(record, about={**record.about, "name": printable(str(path))})


def _score(records: tuple[Record, Record], folder: Path) -> PrecisionReport:
    """Score both records on a data set; the differences are to the first one."""
    from maskjet.evaluation.datasets import DataSet
    from maskjet.parity import coco

    images = DataSet(folder)
    truth = images.truth()
    scored = coco.evaluate(truth, {record.name: record.to_annotations(truth) for record in records})
    lost = [note for each in records for note in each.list_left_out(truth)]
    return replace(scored, notes=[*images.notes, *scored.notes, *lost])


def _read_images(source: str, found: CheckReport, record: Record) -> Iterator[Image]:
    from maskjet.sources.frames import open_source

    for worst in found.worst:
        with open_source(source, start=record.images[worst.number].index, limit=1) as opened:
            if opened.is_live:
                raise InputError(f"images must be the same every time, {source!r} is live.")
            frame = next(iter(opened), None)
        if frame is None:
            raise InputError(f"images must be those of the records, {source!r} has none called {worst.name!r}.")
        yield frame.image
