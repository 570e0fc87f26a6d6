"""The command maskjet bench."""

from __future__ import annotations

from typing import Annotated

import typer

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
from maskjet.config import EngineConfig

EPILOG = """
maskjet bench street.mp4
maskjet bench street.mp4 --precision fp32 --json
"""


@with_config("device", "precision", "runtime", "engine", "compile", "implementation", *INPUT)
def bench(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Image, folder, glob, video or URL.")],
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    config: EngineConfig,
    frames: Annotated[int, option("N", "Most frames to keep in memory and cycle through.")] = 120,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast a model runs here, and what takes the time."""
    from maskjet.evaluation.speed import DEPTHS, measure_source
    from maskjet.model import open_model
    from maskjet.sources.frames import open_source

    open_source(source).close()  # fail early, before the model is loaded
    with open_model(model, weights, config) as loaded, progress("measuring", len(DEPTHS)) as advance:
        report = measure_source(source, loaded, frames=frames, on_progress=advance)
    print_result(report.as_dict() if as_json else report, to_stdout=True)
