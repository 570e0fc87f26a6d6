"""The command maskjet warm."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from maskjet.cli.options import INPUT, JsonOption, WeightsOption, completing, print_result, with_config
from maskjet.config import EngineConfig
from maskjet.spec import MODELS

COMPILED = (
    "drawing",
    "ops",
    "outputs.opening",
    "sources.plain_jpegs",
    "tiling.frames",
    "propagation.motion",
    "tracking",
)
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
    """Compile all that a model may need on this machine, so that later starts need not.

    On a CPU with OpenVINO an RF-DETR is converted to it, which later runs take where it is faster.
    """
    from maskjet import jit
    from maskjet.host import cache
    from maskjet.model import open_model

    begin = time.monotonic()
    if _can_be_converted(model, config):
        config = replace(config, runtime="openvino")
    with open_model(model, weights, config) as loaded:
        for power in range(config.batch.bit_length()):
            loaded.prepare(1 << power)
    for name in COMPILED:
        import_module(f"maskjet.{name}")
    jit.compile_all()
    seconds = round(time.monotonic() - begin, 1)
    folder = cache.folder()
    facts = {"folder": folder and str(folder), "seconds": seconds}
    print_result(facts if as_json else f"compiled code is in {folder}, after {seconds} s")


def _can_be_converted(model: str, config: EngineConfig) -> bool:
    """Whether later runs of a model on this CPU would take its conversion to OpenVINO."""
    from maskjet.networks import find_family
    from maskjet.networks.rfdetr import family as rfdetr

    is_plain = config.runtime == "auto" and config.precision in ("auto", "fp32") and not config.compile
    return (
        is_plain
        and config.resolve_device().type == "cpu"
        and find_spec("openvino") is not None
        and find_family(model) is rfdetr
    )
