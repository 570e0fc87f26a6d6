"""The command maskjet quantize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskjet.checks import parse_hw
from maskjet.cli.options import InputSizeOption, JsonOption, WeightsOption, completing, option, print_result, progress
from maskjet.spec import MODELS

EPILOG = """
maskjet quantize demo --images streets -o demo-int8.xml
maskjet quantize nano.pt --images frames -o nano-int8.xml
"""


def quantize(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="demo, a checkpoint's path, or a size of RF-DETR with --weights, as for export.",
            autocompletion=completing(MODELS),
        ),
    ],
    *,
    images: Annotated[
        Path,
        option(
            "FOLDER",
            "At least 40 images such as the model will see; with annotations, as maskjet val takes them, AP is "
            "measured, too.",
        ),
    ],
    out: Annotated[Path, option("PATH", "The file, .xml; a .bin and a page .html come beside it.", "--out", "-o")],
    weights: WeightsOption = None,
    budget: Annotated[
        float | None,
        option(
            "NUMBER",
            "Largest loss of AP, if images have annotations (the upper bound of its 95 % interval; 0.01 if not given), "
            "or else the largest share of detections that only one of both finds (0.02).",
        ),
    ] = None,
    input_size: InputSizeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model as INT8 for CPUs, if images show that it finds the same."""
    from maskjet.quantization import quantize as write

    with progress("comparing", None) as advance:
        certificate = write(
            model,
            images,
            out,
            weights=weights,
            input_size=None if input_size is None else parse_hw(input_size),
            budget=budget,
            on_progress=advance,
        )
    print_result(certificate.as_dict() if as_json else certificate)
