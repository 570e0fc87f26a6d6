"""The commands maskjet parity ..., which compare different ways of running a detector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskjet.cli.flags import add_command
from maskjet.cli.options import (
    ENGINE_PANEL,
    INPUT,
    DepthOption,
    ModelOption,
    ReportOption,
    SizeOption,
    WeightsOption,
    option,
    parse_size,
    print_result,
    progress,
    with_config,
)
from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.host.files import is_same_file
from maskjet.host.printing import printable
from maskjet.parity import FIRST_SEED, THRESHOLD

if TYPE_CHECKING:
    from maskjet.parity.coco import PrecisionReport
    from maskjet.parity.dump import Dump
    from maskjet.parity.images import Images

_EXAMPLES = """
# Does bfloat16 find the same? Write down what each finds, then compare.
maskjet parity dump exact.npz --count 4
maskjet parity dump fast.npz --count 4 --precision bf16
maskjet parity check exact.npz fast.npz
"""
_DUMP_EXAMPLES = """
# On drawn streets, and on images of your own.
maskjet parity dump exact.npz --count 4
maskjet parity dump mine.npz --images frames/ --precision bf16
"""
_CHECK_EXAMPLES = """
maskjet parity check exact.npz fast.npz
maskjet parity check exact.npz fast.npz --pictures worst/ -o report.json
"""
_COCO_EXAMPLES = """
maskjet parity coco exact.npz fast.npz
maskjet parity coco exact.npz found.json --coco-dir streets -o report.json
"""
_GATE_EXAMPLES = """
maskjet parity gate exact.npz fast.npz --max-unmatched 0.05 --max-dconf 0.2
maskjet parity gate exact.npz fast.npz --max-dconf 0.2 --report page.html
"""

parity_app = typer.Typer(
    no_args_is_help=True, help="Check that another model, setting or machine finds the same.", epilog=_EXAMPLES
)
_EXIT_BROKEN = 1

ImagesOption = Annotated[str | None, option("SOURCE", "Image, folder, glob or video; if not given, drawn streets.")]
CocoDirOption = Annotated[Path | None, option("FOLDER", "A data set with annotations, as maskjet val takes it.")]
_AgainOption = Annotated[str | None, option("SOURCE", "The dumps' images, for pictures; drawn streets need none.")]
CountOption = Annotated[int, option("N", "Number of drawn streets.")]
SeedOption = Annotated[int, option("N", "Seed of the first drawn street.")]
_ExpectedArgument = Annotated[Path, typer.Argument(metavar="EXPECTED", help="A file that parity dump wrote.")]


@add_command(parity_app, _DUMP_EXAMPLES, "dump")
@with_config("device", "precision", "runtime", "engine", "compile", "implementation", "resample", *INPUT)
def parity_dump(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write, .npz.")],
    *,
    images: ImagesOption = None,
    coco_dir: CocoDirOption = None,
    count: CountOption = 50,
    size: SizeOption = "312",
    seed: SeedOption = FIRST_SEED,
    name: Annotated[str | None, option("NAME", "The variant's name in tables; if not given, the file's.")] = None,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    config: EngineConfig,
    depth: DepthOption = 1,
    batch: Annotated[int, option("N", "Largest batch, in images.", panel=ENGINE_PANEL)] = 1,
    threshold: Annotated[float, option("NUMBER", "Confidence that a detection must exceed, 0 to 1.")] = THRESHOLD,
) -> None:
    """Write down what a model finds in images, to compare later."""
    from maskjet.model import read_network
    from maskjet.parity.dump import write_dump
    from maskjet.parity.variants import DetectorVariant

    if out.suffix != ".npz":
        raise InputError(f"out must be a path that ends in .npz, got {str(out)!r}.")
    variant = DetectorVariant(name or out.stem, config, depth=depth, batch=batch, threshold=threshold)
    chosen = choose_images(images, coco_dir, count, size, seed)
    network = read_network(model, weights, config.input_size)
    with progress("detecting", chosen.length) as advance:
        dump = write_dump(out, variant, network, chosen, on_progress=advance)
    for reason in dump.skipped:
        print_result(f"skipped: {printable(reason)}")
    skipped = f", {len(dump.skipped)} skipped" if dump.skipped else ""
    print_result(f"wrote {sum(map(len, dump.found))} detections on {len(dump.names)} images to {out}{skipped}")


@add_command(parity_app, _CHECK_EXAMPLES, "check")
def parity_check(
    expected: _ExpectedArgument,
    actual: Annotated[
        list[Path], typer.Argument(metavar="ACTUAL", help="Dumps of the same images, each compared with the first.")
    ],
    *,
    confidence: Annotated[
        list[float] | None, option("NUMBER", "Count also from this confidence up; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, option("PATH", "A JSON file for the report; only with two dumps.", "--out", "-o")
    ] = None,
    pictures: Annotated[
        Path | None, option("FOLDER", "A folder for pictures of the ten worst images; only with two dumps.")
    ] = None,
    images: _AgainOption = None,
    coco_dir: CocoDirOption = None,
) -> None:
    """Compare what dumps found: matched, dropped and added detections.

    A difference is a result, not an error.
    """
    from maskjet.parity import check
    from maskjet.parity.closeups import write_overviews
    from maskjet.parity.dump import Dump
    from maskjet.parity.pictures import find_worst

    if len(actual) > 1 and (out or pictures):
        raise InputError("--out and --pictures take one dump to compare with; call it once for each.")
    _check_kept("out", out, [expected, *actual])
    first = Dump.load(expected)
    others = [Dump.load(path) for path in actual]
    shown = _find_images(first, images, coco_dir) if pictures is not None else None
    with progress("comparing", len(first.names) * len(others)) as advance:
        reports = [check.check(first, other, confidences=confidence or (), on_progress=advance) for other in others]
    reports[0].write(out)
    for report in reports:
        print_result(report, to_stdout=True)
        _warn(report.notes)
    if pictures is not None:
        written = write_overviews(pictures, find_worst(reports[0].worst, first, others[0], shown))
        print_result(f"wrote {len(written)} pictures to {pictures}")


@add_command(parity_app, _COCO_EXAMPLES, "coco")
def parity_coco(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULTS", help="Dumps, or COCO results (.json) of any program.")
    ],
    *,
    coco_dir: CocoDirOption = None,
    baseline: Annotated[str | None, option("NAME", "The variant to compare with; the first if not given.")] = None,
    out: ReportOption = None,
) -> None:
    """Compare the accuracy (COCO mAP) of variants.

    Average precision for all IoUs, 0.5 and 0.75, and for small, medium and large things; the differences.
    """
    from maskjet.parity.coco_files import compare_names, read_results_file
    from maskjet.parity.dump import Dump

    _check_kept("out", out, results)
    dumps = {path: Dump.load(path) for path in results if path.suffix != ".json"}
    truth = _find_truth(coco_dir, list(dumps.values()))
    if truth is None:
        raise InputError("--coco-dir must name a data set: the images' files do not say what is on them.")
    found: dict[str, Any] = {}
    notes: list[str] = []
    for path in results:
        name = dumps[path].name if path in dumps else path.stem
        if name in found:
            raise InputError(f"results must have different names, got {name!r} twice.")
        if path in dumps:
            found[name] = dumps[path].to_annotations(truth)
            notes += _left_out(dumps[path], truth)
        else:
            read = read_results_file(path)
            found[name] = read.entries
            notes += compare_names(truth, name, read.categories)
    report = _evaluate(truth, found, baseline)
    report = replace(report, notes=[*report.notes, *notes])
    report.write(out)
    print_result(report, to_stdout=True)
    _warn(report.notes)


@add_command(parity_app, _GATE_EXAMPLES, "gate")
def parity_gate(
    expected: _ExpectedArgument,
    actual: Annotated[Path, typer.Argument(metavar="ACTUAL", help="Another, of the same images.")],
    *,
    max_unmatched: Annotated[
        float | None, option("NUMBER", "Largest share of detections without a counterpart, 0 to 1.")
    ] = None,
    max_dconf: Annotated[float | None, option("NUMBER", "Largest difference in confidence of a pair, 0 to 1.")] = None,
    max_dap: Annotated[float | None, option("NUMBER", "Largest difference in mAP, 0 to 1.")] = None,
    images: _AgainOption = None,
    coco_dir: CocoDirOption = None,
    report: Annotated[Path | None, option("PATH", "An HTML page with tables and pictures.")] = None,
) -> None:
    """Fail with exit code 1 if two dumps differ too much, for CI."""
    from maskjet.parity import check, gate
    from maskjet.parity.dump import Dump
    from maskjet.parity.page import write_page

    _check_kept("report", report, [expected, actual])
    limits = gate.Limits(max_unmatched, max_dconf, max_dap)
    dumps = Dump.load(expected), Dump.load(actual)
    gate.check_comparable(*dumps)
    shown = _find_images(dumps[0], images, coco_dir) if report is not None else None
    truth = _find_truth(coco_dir, dumps) if max_dap is not None else None
    with progress("comparing", len(dumps[0].names)) as advance:
        found = check.check(*dumps, on_progress=advance)
    precision = None
    if truth is not None:
        results = {dump.name: dump.to_annotations(truth) for dump in dumps}
        if len(results) < 2:
            raise InputError(f"the dumps must have different names, both are {dumps[0].name!r}; see dump --name.")
        precision = _evaluate(truth, results, dumps[0].name)
    verdicts = gate.judge(found, precision, limits)
    if report is not None:
        write_page(report, found, verdicts, dumps, precision, shown)
        print_result(f"wrote {report}")
    _warn([*found.notes, *(precision.notes if precision else ())])
    for verdict in verdicts:
        print_result(verdict, to_stdout=True)
    if not all(verdict.is_kept for verdict in verdicts):
        raise typer.Exit(_EXIT_BROKEN)


def _check_kept(name: str, out: Path | None, inputs: Sequence[Path]) -> None:
    """Raise InputError if the file to write is one of the inputs."""
    if out is not None and any(is_same_file(out, path) for path in inputs):
        raise InputError(f"{name} must not be a file that is compared, got {str(out)!r}.")


def choose_images(source: str | None, coco_dir: Path | None, count: int, size: str, seed: int) -> Images:
    """Build the set of images given by a command's options."""
    from maskjet.evaluation.datasets import DataSet
    from maskjet.parity.images import Files, Traffic

    if source is not None and coco_dir is not None:
        raise InputError("--images and --coco-dir must not both be given.")
    if coco_dir is not None:
        return DataSet(coco_dir)
    if source is not None:
        return Files(source)
    return Traffic(count, parse_size(size), seed)


def _find_truth(coco_dir: Path | None, dumps: Sequence[Dump]) -> Any:
    """Find the ground truth: given, or of generated streets, else None; opens no path named in a dump."""
    from maskjet.evaluation.datasets import DataSet
    from maskjet.parity.images import Files, streets_from

    if coco_dir is not None:
        return DataSet(coco_dir).truth()
    if not dumps or dumps[0].images["kind"] == Files.kind:
        return None
    return streets_from(dumps[0].images, len(dumps[0].names)).truth()


def _find_images(dump: Dump, source: str | None, coco_dir: Path | None) -> Images:
    """Find the images of a dump: given again, or generated; opens no path named in a dump."""
    from maskjet.evaluation.datasets import DataSet
    from maskjet.parity.images import Files, streets_from

    if source is not None:
        return Files(source)
    if coco_dir is not None and dump.images["kind"] == DataSet.kind:
        return DataSet(coco_dir)
    return streets_from(dump.images, len(dump.names))


def _left_out(dump: Dump, truth: Any) -> list[str]:
    """Describe, in sentences, detections that can't be scored, and images missing from the dump."""
    found = dump.classes_without(truth)
    notes = []
    if found:
        named = ", ".join(f"{title} ({count})" for title, count in found.items())
        notes.append(f"{dump.name!r} has detections of classes that the truth lacks, left out: {named}.")
    if len(dump.names) < len(truth["images"]):
        notes.append(f"{dump.name!r} has {len(dump.names)} of the truth's {len(truth['images'])} images.")
    return notes


def _warn(notes: Sequence[str]) -> None:
    for note in notes:
        print_result(f"note: {note}")


def _evaluate(truth: Any, results: dict[str, Any], baseline: str | None) -> PrecisionReport:
    from maskjet.parity import coco

    with progress("measuring", None) as advance:
        return coco.evaluate(truth, results, baseline=baseline, on_progress=advance)
