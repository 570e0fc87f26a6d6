"""The command maskjet info."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from maskjet.cli.options import INPUT, JsonOption, WeightsOption, option, print_result, with_config
from maskjet.config import EngineConfig
from maskjet.spec import MODELS

if TYPE_CHECKING:
    from maskjet.model import Model
    from maskjet.spec import ModelSpec, TwoStageSpec

EPILOG = """
maskjet info
maskjet info --model demo
"""


@with_config("device", "precision", "runtime", "engine", "compile", "implementation", *INPUT)
def info(
    *,
    model: Annotated[
        str | None,
        option(
            "NAME|PATH",
            "Describe this model, as run --model takes it: its file, classes, input size and thresholds; and, after "
            "two black frames, what each step runs on and why.",
            choices=MODELS,
        ),
    ] = None,
    weights: WeightsOption = None,
    config: EngineConfig,
    as_json: JsonOption = False,
) -> None:
    """Show versions and devices, or what a model finds and how it runs."""
    import torch

    from maskjet.host import process
    from maskjet.version import __version__

    facts: dict[str, Any] = {
        "maskjet": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "devices": ["cpu", *(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))],
        "processor": list(process.notes()) or ["nothing wrong"],
        "models": list(MODELS),
    }
    if model is None:
        print_result(facts if as_json else _lines(facts), to_stdout=True)
        return
    from maskjet.model import open_model

    with open_model(model, weights, config) as loaded:
        described = {
            "file": _describe_file(model, weights),
            **_describe_certificate(Path(model)),
            **_describe_spec(loaded.spec),
            "threshold": loaded.spec.threshold,
            "max_detections": min(config.max_detections, getattr(loaded.spec, "selected_pairs", config.max_detections)),
        }
        report = _warm_up(loaded)
    if as_json:
        facts |= {"model": described, "report": report.as_dict()}
        print_result(facts, to_stdout=True)
        return
    facts["models"] = f"{len(facts['models'])} names; maskjet info lists them"
    classes = _shown_classes(described.pop("classes"))
    shown = {**described, "input": _shown_input(described["input"]), "classes": classes}
    if "certificate" in shown:
        shown["certificate"] = _shown_certificate(shown["certificate"])
    print_result(f"{_lines(facts)}\n\n{_lines(shown)}\n\n{report}", to_stdout=True)


def _warm_up(model: Model) -> Any:
    """Detect on two black frames, since the second captures the graph; returns the report, which counts none."""
    import numpy as np

    from maskjet.traffic import SIZES_HW

    for _ in range(2):
        model.predict(np.zeros((*SIZES_HW["720p"], 3), np.uint8))
    return replace(model.report(), images=0, detections=0)


def _describe_spec(spec: ModelSpec | TwoStageSpec) -> dict[str, Any]:
    from maskjet.spec import ModelSpec

    if isinstance(spec, ModelSpec):
        shape: dict[str, Any] = dict(zip(("height", "width"), spec.input_hw, strict=True))
    elif spec.fixed_hw is not None:
        shape = {"height": spec.fixed_hw[0], "width": spec.fixed_hw[1]}
    else:
        shape = {"shorter_side": spec.shortest, "longer_side_at_most": spec.longest}
    return {
        "name": spec.name,
        "masks": spec.has_masks,
        "input": shape,
        "classes": {str(class_id): name for class_id, name in sorted(spec.class_names.items())},
    }


def _describe_file(model: str, weights: Path | None) -> str:
    path = weights or Path(model)
    if weights is None and model == "demo":
        return "part of maskjet: trained on drawn streets"
    return f"{path} ({path.stat().st_size / 1e6:.1f} MB)"


def _describe_certificate(path: Path) -> dict[str, Any]:
    """The certificate of a quantised file, under its name; an empty dictionary for other models."""
    from maskjet.networks.exported.metadata import IR
    from maskjet.networks.exported.network_file import read_network_file

    return {"certificate": read_network_file(path).certificate} if path.suffix == IR else {}


def _shown_certificate(stated: Mapping[str, Any]) -> str:
    """A certificate in a line; any program may have written it."""
    try:
        bounds = [f"{each['quantity']} {each['found']:.4g}, limit {each['limit']:g}" for each in stated["verdicts"]]
        return f"{'; '.join(bounds)}; on {int(stated['images']['certification'])} images"
    except (KeyError, TypeError, ValueError):
        return "none of maskjet quantize"


def _shown_input(shape: Mapping[str, int]) -> str:
    if "height" in shape:
        return f"{shape['width']}×{shape['height']} pixels, whatever the image's"
    return f"shorter side {shape['shorter_side']} pixels, longer at most {shape['longer_side_at_most']}"


def _shown_classes(classes: Mapping[str, str]) -> str:
    names = ", ".join(f"{class_id} {name}" for class_id, name in classes.items())
    return f"{len(classes)}: {names}" if classes else "no names; detections are numbered"


def _lines(facts: Mapping[str, Any]) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return ", ".join(value) if isinstance(value, list) else str(value)

    return "\n".join(f"{name.replace('_', ' ')}: {shown(value)}" for name, value in facts.items())
