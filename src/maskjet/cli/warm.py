"""The command maskjet warm."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Annotated

import typer

from maskjet.cli.choosing import load_model
from maskjet.cli.options import INPUT, JsonOption, WeightsOption, completing, print_result, with_config
from maskjet.config import EngineConfig
from maskjet.spec import MODELS

COMPILED = ("drawing", "ops", "outputs.opening", "sources.plain_jpegs", "tiling.frames", "tracking")
"""Modules of maskjet whose import registers all compiled functions."""
EPILOG = """
# What the demo needs; what a service with batches of up to 16 images needs.
maskjet warm demo
maskjet warm rf-detr-seg-nano --weights nano.pt --batch 16

The code is kept in ~/.cache/maskjet, or in the folder MASKJET_CACHE_DIR.
"""


@with_config("device", "precision", "runtime", "engine", "compile", "implementation", "batch", *INPUT)
def warm(
    model: Annotated[
        str,
        typer.Argument(
            metavar="NAME|PATH", autocompletion=completing(MODELS), help="The model, as run --model takes it."
        ),
    ],
    *,
    weights: WeightsOption = None,
    config: EngineConfig,
    as_json: JsonOption = False,
) -> None:
    """Compile all that a model may need on this machine, so that later starts need not."""
    from maskjet import jit
    from maskjet.host import cache

    begin = time.monotonic()
    with load_model(model, weights, config) as loaded:
        for power in range(config.batch.bit_length()):
            loaded.prepare(1 << power)
    for name in COMPILED:
        import_module(f"maskjet.{name}")
    jit.compile_all()
    seconds = round(time.monotonic() - begin, 1)
    folder = cache.folder()
    facts = {"folder": folder and str(folder), "seconds": seconds}
    print_result(facts if as_json else f"compiled code is in {folder}, after {seconds} s")
