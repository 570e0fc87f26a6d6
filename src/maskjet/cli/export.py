"""The command maskjet export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from maskjet.checks import parse_hw
from maskjet.cli.options import InputSizeOption, JsonOption, WeightsOption, completing, option, print_result, switch
from maskjet.networks.exported.metadata import Precision
from maskjet.spec import MODELS

EPILOG = """
maskjet export demo --out demo.onnx
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
    out: Annotated[Path, option("PATH", "The ONNX file, which takes this name once it is compared.", "--out", "-o")],
    weights: WeightsOption = None,
    precision: Annotated[
        str,
        option(
            "|".join(_PRECISIONS),
            "Type of weights and activations; boxes and scores stay float32.",
            choices=_PRECISIONS,
        ),
    ] = "fp32",
    input_size: InputSizeOption = None,
    batch: Annotated[
        int | None, option("N", "Images per run of the file, as TensorRT 8.6 wants; if not given, any number.")
    ] = None,
    antialias: Annotated[
        bool, switch("--antialias", "Say in the file that frames are resized with antialias, as the model was trained.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a model to an ONNX file, and compare it with the model."""
    from maskjet import export

    file = export.export(
        model,
        out,
        weights=weights,
        input_size=None if input_size is None else parse_hw(input_size),
        precision=cast(Precision, precision),
        batch=batch,
        antialias=antialias,
    )
    print_result(file.as_dict() if as_json else file)
