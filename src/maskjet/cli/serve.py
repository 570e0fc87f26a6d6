"""The command maskjet serve."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from maskjet.cli.options import (
    INPUT,
    WeightsOption,
    option,
    option_of,
    parse_processes,
    print_result,
    with_config,
    with_options,
)
from maskjet.config import NMS, EngineConfig
from maskjet.errors import InputError, MaskjetError
from maskjet.serve import check_extra
from maskjet.serve.settings import Settings

EPILOG = """
# Serve the built-in model on this machine, at http://127.0.0.1:8000.
maskjet serve
# Serve two models to other machines, which send the token in MASKJET_TOKEN.
maskjet serve --model demo --model cars=cars.pt --host 0.0.0.0
# Watch a camera besides; its results and a preview are on the page.
maskjet serve --source door=rtsp://camera.local/stream
# Use every GPU.
maskjet serve --devices all
"""
# Settings in the main panel.
_MAIN = ("host", "port", "token", "insecure", "source", "allow_sources")
_SETTINGS_PANEL = "Limits of the service"


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per field of `Settings`, in place of its parameter `settings`."""

    def make(given: dict[str, Any]) -> Settings:
        return Settings(**given | {"source": tuple(given.get("source", ()))}).with_token()

    panels = {each.name: None if each.name in _MAIN else _SETTINGS_PANEL for each in fields(Settings)}
    options = {name: option_of(Settings, name, panel, shows_default=True) for name, panel in panels.items()}
    return with_options(command, "settings", options, make)


@with_settings
@with_config("device", "precision", "runtime", "engine", "compile", *INPUT, "decoder", "max_detections", *NMS)
def serve(
    ctx: typer.Context,
    *,
    model: Annotated[
        list[str] | None,
        option(
            "[NAME=]MODEL",
            "A model as run --model takes it; repeated for several, where each may have a name, which requests give as "
            "?model=NAME. The first one serves those that give none. Not given: demo.",
        ),
    ] = None,
    weights: WeightsOption = None,
    devices: Annotated[
        str | None,
        option(
            "all|NAME,NAME,…",
            "Devices to serve on: all for every GPU, or names as --device takes them, as cuda:0,cuda:2. In place of "
            "--device, and of MASKJET_DEVICE.",
        ),
    ] = None,
    processes: Annotated[
        str,
        option(
            "auto|N",
            "Processes for each device, which share the port. auto: as many as fill a GPU, by cores and free memory; 1 "
            "on a CPU, and for devices that are named several times. A process that ends is started again. Limits hold "
            "for each process, but --connections for all together.",
        ),
    ] = "auto",
    config: EngineConfig,
    settings: Settings,
) -> None:
    """Serve models over HTTP.

    POST /v1/predict answers an image with what is found in it; /docs has more.
    """
    check_extra()
    chosen = parse_models(model or ["demo"], weights)
    if devices is not None and ctx.params["device"] is not None:
        raise InputError(f"devices must be given without --device {ctx.params['device']}, got {devices!r} with it.")
    from maskjet.host.devices import choose

    try:
        places = choose(devices or config.device, config.check_cpu, parse_processes(processes))
    except MaskjetError:
        if devices is None and config.device != "auto":
            config.resolve_device()  # errors here name the option
        raise
    if devices is None and len(places) == 1:
        _serve_alone(chosen, weights, config, settings)
        return
    from maskjet.serve.processes import serve as serve_by_workers

    names, where = ", ".join(chosen), ", ".join(place.device for place in places)
    told = f"maskjet: serving {names} on {where} at"
    serve_by_workers(
        chosen, places, config, settings, weights=weights, announce=lambda url: print_result(f"{told} {url}")
    )


def parse_models(given: Sequence[str], weights: object = None) -> dict[str, str]:
    """Parse `--model` or `model=` values to models by name; raises InputError for invalid names or weights."""
    models: dict[str, str] = {}
    for text in given:
        name, separator, model = text.partition("=")
        if not separator:
            name, model = Path(text).stem if os.sep in text or "." in text else text, text
        if not name or not model:
            raise InputError(f"model must be MODEL or NAME=MODEL, got {text!r}.")
        if name in models:
            raise InputError(f"model must have a name of its own for each, got {name!r} twice; give NAME=MODEL.")
        models[name] = model
    if weights is not None and len(models) > 1:
        raise InputError("weights must go with one model, got several; give each as NAME=PATH.")
    return models


def _serve_alone(chosen: dict[str, str], weights: Path | None, config: EngineConfig, settings: Settings) -> None:
    from maskjet.host import process
    from maskjet.model import open_model
    from maskjet.serve import create_app, server

    with ExitStack() as stack:
        listener = stack.enter_context(server.listen(settings))
        models = {name: stack.enter_context(open_model(what, weights, config)) for name, what in chosen.items()}
        stack.enter_context(process.garbage_frozen())
        app = create_app(models, settings)
        names = ", ".join(models)
        server.run(app, listener, announce=lambda url: print_result(f"maskjet: serving {names} at {url}"))
