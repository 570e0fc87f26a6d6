"""RF-DETR for `maskjet.load`: the demo model, the named sizes and checkpoints; see `networks.Family`."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

import torch

from maskjet.config import EngineConfig, torch_dtype
from maskjet.engine.compilation import Compiler
from maskjet.engine.runtime import Runtime
from maskjet.errors import InputError, suggest
from maskjet.networks.rfdetr.checkpoint import load_network, read_checkpoint, resolve_spec
from maskjet.networks.rfdetr.fused import Fused, FusedOrCompiled
from maskjet.networks.rfdetr.network import RFDETR
from maskjet.networks.rfdetr.steps import OneStage
from maskjet.networks.weights_file import check_is_file
from maskjet.postprocessing import Postprocessing
from maskjet.spec import MODELS, SPECS, ModelSpec

_DEMO = "demo"
_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")  # a model with such a suffix is a path


def serves(model: object) -> bool:
    """Whether this is an `RFDETR`, a name or a path."""
    return isinstance(model, RFDETR | str | os.PathLike)


def load(
    model: str | os.PathLike[str],
    weights: str | os.PathLike[str] | None = None,
    input_size: tuple[int, int] | None = None,
) -> RFDETR:
    """Find and read a network; see `networks.read_network`."""
    for argument, value in (("model", model), ("weights", "" if weights is None else weights)):
        if not isinstance(value, str | os.PathLike):
            raise InputError(f"{argument} must be a name or a path, got a {type(value).__name__}.")
    name = os.fspath(model)
    if name in SPECS:
        if weights is None:
            raise InputError(
                f"weights must be the path of a checkpoint for {name!r}, got None; maskjet downloads none. rfdetr's is "
                f"{file_name(name)}, which rfdetr downloads to ~/.roboflow/models when it makes that model."
            )
        return _fill(Path(weights), SPECS[name], input_size)
    if weights is not None:
        raise InputError(f"model must be a named size when weights are given, got {name!r}{suggest(name, MODELS[1:])}")
    if name == _DEMO:
        with as_file(files("maskjet.networks.demo") / "weights.safetensors") as path:
            return _fill(path, None, input_size)
    path = Path(name)
    if not path.exists() and path.suffix not in _SUFFIXES and len(path.parts) < 2:
        end = suggest(name, MODELS)
        raise InputError(f"model must be a name or a checkpoint's path, got {name!r}{end}")
    if not path.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", name) and path.suffix not in _SUFFIXES:
        raise InputError(
            f"model must be a name or a path, got {name!r}, where nothing is; maskjet downloads nothing. "
            f"A model of Hugging Face's comes by hf download {name} --local-dir {path.name}; then load {path.name!r}."
        )
    if not path.is_dir():
        check_is_file(path, "model")
    return _fill(path, None, input_size)


def file_name(size: str) -> str:
    """File name of rfdetr 1.11's checkpoint of a named size."""
    if size == "rf-detr-large":
        return "rf-detr-large-2026.pth"
    return f"{size.replace('2xlarge', 'xxlarge')}.{'pt' if '-seg-' in size else 'pth'}"


def _fill(path: Path, size: ModelSpec | None, input_size: tuple[int, int] | None) -> RFDETR:
    checkpoint = read_checkpoint(path)
    spec = resolve_spec(checkpoint, size)
    return load_network(spec if input_size is None else replace(spec, input_size=input_size), checkpoint)


def make_steps(network: RFDETR, config: EngineConfig, postprocessing: Postprocessing) -> OneStage:
    """Make the steps of a network on its device.

    Raises:
        InputError: `input_size` is not the network's, which must be read with it; or another runtime is asked for.
        UnsupportedError: The runtime that is asked for can't run the network here.
        MissingDependencyError: runtime="openvino" is asked for, which is not installed.
    """
    if config.input_size not in (None, network.spec.input_hw):
        raise InputError(
            f"input_size must be the network's, {network.spec.input_hw}, got {config.input_size}: give it to "
            "read_network or load."
        )
    device, input_hw = config.resolve_device(), network.spec.input_hw
    if device.type == "cpu" or config.runtime == "openvino" or config.precision == "int8":
        from maskjet.networks.exported import conversion

        if (by_openvino := conversion.choose(network, config, device)) is not None:
            return OneStage(network.spec, by_openvino, config, postprocessing, by_openvino.precision, by_openvino.dtype)
    dtype = torch_dtype(config.resolve_precision(device))

    def by_torch() -> Compiler:
        return Compiler(
            network.to(device).cast(dtype),
            lambda batch: (torch.empty(batch, 3, *input_hw, dtype=dtype, device=device),),
            config,
            why_not_by_default="" if device.type == "cuda" else "on a CPU it gains nothing",  # 160 against 164 ms
        )

    runtime: Runtime
    if config.runtime == "fused":
        if config.compile:
            raise InputError(f"compile must be None or False with runtime 'fused', got {config.compile}.")
        runtime = Fused(network.to(device), dtype)
    elif config.runtime == "auto" and config.compile is None and device.type == "cuda":
        runtime = FusedOrCompiled(network.to(device), dtype, by_torch)
    else:
        runtime = by_torch()
    return OneStage(network.spec, runtime, config, postprocessing)
