"""The command maskjet info."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import typer

from maskjet.cli.options import (
    JsonOption,
    WeightsOption,
    print_result,
    with_config,
)
from maskjet.config import EngineConfig

EPILOG = """
maskjet info
maskjet info --model demo
"""


@with_config("device", "precision", "engine", "compile", "implementation")
def info(
    *,
    model: Annotated[str | None, typer.Option(help="Load this model and report how it runs.")] = None,
    weights: WeightsOption = None,
    config: EngineConfig,
    as_json: JsonOption = False,
) -> None:
    """Show versions and devices; with --model, detect on two black frames and report how that ran, and why."""
    import numpy as np
    import torch

    from maskjet import __version__, process
    from maskjet.model import Model, read_network
    from maskjet.spec import SPECS
    from maskjet.traffic import SIZES_HW

    facts: dict[str, Any] = {
        "maskjet": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "devices": ["cpu", *(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))],
        "processor": list(process.notes()) or ["nothing wrong"],
        "models": ["demo", *SPECS],
    }
    if model is not None:
        with Model(read_network(model, weights), config) as loaded:
            for _ in range(2):  # the second frame captures the steps
                loaded.predict(np.zeros((*SIZES_HW["720p"], 3), np.uint8))
            report = loaded.report()
        facts = {**facts, "report": report.as_dict()} if as_json else {**facts, "report": f"\n{report}"}
    text = "\n".join(f"{name}: {', '.join(v) if isinstance(v, list) else v}" for name, v in facts.items())
    print_result(facts if as_json else text, to_stdout=True)
