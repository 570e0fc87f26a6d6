"""The command maskjet export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from maskjet.cli.choosing import ClassesOption, ThresholdOption, parse_thresholds, split_list
from maskjet.cli.options import MODELS, JsonOption, WeightsOption, completing, option, print_result, switch
from maskjet.config import DEFAULT_THRESHOLD, EngineConfig, parse_hw
from maskjet.errors import InputError
from maskjet.networks.exported.metadata import Precision

EPILOG = """
maskjet export demo --out demo.onnx
maskjet export demo --out demo.onnx --postprocess --threshold 0.6,car=0.7
maskjet export rf-detr-seg-nano --weights rf-detr-seg-nano.pt \\
    --precision fp16 --out nano.onnx
"""


_PRECISIONS: tuple[str, ...] = get_args(Precision)


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="demo; a checkpoint's path; or a size of RF-DETR with --weights, rf-detr-nano to rf-detr-large or "
            "rf-detr-seg-nano to rf-detr-seg-2xlarge.",
            autocompletion=completing(MODELS),
        ),
    ],
    *,
    out: Annotated[
        Path,
        option(
            "PATH",
            "The ONNX file, which takes this name once it is compared.",
            "--out",
            "-o",
        ),
    ],
    weights: WeightsOption = None,
    precision: Annotated[
        str,
        option(
            "|".join(_PRECISIONS),
            "Type of weights and activations; boxes and scores stay float32.",
            choices=_PRECISIONS,
        ),
    ] = "fp32",
    postprocess: Annotated[
        bool, switch("--postprocess", "Let the file choose detections, with boxes in pixels of the image.")
    ] = False,
    threshold: ThresholdOption = None,
    classes: ClassesOption = None,
    max_detections: Annotated[int | None, option("N", "Most detections per image. Not given: 100.")] = None,
    input_size: Annotated[
        str | None, option("WIDTHxHEIGHT", "Size of the file's input, as for run; if not given, the model's.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model to an ONNX file, and compare it with the model."""
    from maskjet import runtimes

    chosen = {"threshold": threshold, "classes": classes, "max_detections": max_detections}
    given = [name for name, value in chosen.items() if value is not None]
    if given and not postprocess:
        raise InputError(f"{given[0]} must be left out, or --postprocess be given, got {given[0]} alone.")
    everywhere, by_class = parse_thresholds(threshold)
    selecting = runtimes.Postprocess(
        threshold=DEFAULT_THRESHOLD if everywhere is None else everywhere,
        class_thresholds=by_class,
        classes=split_list(classes) or None,
        max_detections=EngineConfig.max_detections if max_detections is None else max_detections,
    )
    file = runtimes.export(
        model,
        out,
        weights=weights,
        input_size=None if input_size is None else parse_hw(input_size),
        precision=cast(Precision, precision),
        postprocess=selecting if postprocess else None,
    )
    print_result(file.as_dict() if as_json else file)
