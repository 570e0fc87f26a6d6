"""The command maskjet val."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskjet.cli.choosing import ThresholdOption, parse_thresholds, split_list
from maskjet.cli.options import (
    INPUT,
    JsonOption,
    ModelOption,
    WeightsOption,
    option,
    print_result,
    progress,
    with_config,
)
from maskjet.config import NMS, EngineConfig
from maskjet.errors import InputError

EPILOG = """
maskjet val streets -o scores/
# On the test part of a data set that calls cars otherwise.
maskjet val vehicles --model rf-detr-seg-nano --weights nano.pt --split test \\
    --map Automobile=car
"""


@with_config(
    *("device", "precision", "runtime", "engine", "compile", "implementation", "resample"),
    *(*INPUT, "max_detections", *NMS),
)
def val(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Folder of images with annotations: as COCO's, CVAT's or Roboflow's, as traffic coco writes it, or "
            "YOLO's; or COCO's file or YOLO's data.yaml, of any name.",
        ),
    ],
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    config: EngineConfig,
    split: Annotated[
        str | None, option("NAME", "Which part of the data set. Not given: the one that is named val, valid or test.")
    ] = None,
    map: Annotated[  # noqa: A002
        list[str] | None,
        option(
            "NAME=CLASS",
            "The model's class for one of the data set, if their names differ. May be repeated, or a list with commas.",
        ),
    ] = None,
    threshold: ThresholdOption = None,
    out: Annotated[
        Path | None,
        option("FOLDER", "A folder for report.json, and page.html with precision-recall curves.", "--out", "-o"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a model on images with annotations.

    COCO's average precision and recall, of boxes and masks, by class, over all detections above 0.001; precision,
    recall and F1 at the threshold and at the best one.
    """
    from maskjet.evaluation import scoring
    from maskjet.evaluation.datasets import DataSet
    from maskjet.evaluation.evaluation import write_evaluation
    from maskjet.model import open_model

    everywhere, by_class = parse_thresholds(threshold)
    with open_model(model, weights, config, threshold=everywhere, class_thresholds=by_class) as loaded:
        task = scoring.prepare(DataSet(data, split), loaded, _parse_map(map))
        for note in task.notes:
            print_result(f"note: {note}")
        with progress("detecting", task.images.length) as advance:
            outcome = scoring.run(task, loaded, advance)
    print_result(outcome.report.as_dict() if as_json else outcome.report, to_stdout=True)
    for path in [] if out is None else write_evaluation(out, outcome, task.images):
        print_result(f"wrote {path}")


def _parse_map(texts: list[str] | None) -> dict[str, str]:
    found = {}
    for item in split_list(texts):
        theirs, equals, ours = item.partition("=")
        if not (theirs and equals and ours):
            raise InputError(f"class_map must be NAME=CLASS, got {item!r}.")
        found[theirs] = ours
    return found
