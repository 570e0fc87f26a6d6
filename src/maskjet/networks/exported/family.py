"""RF-DETR in exported files for `maskjet.load`; see `networks.Family`."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from maskjet.config import EngineConfig, RuntimeName
from maskjet.errors import InputError, UnsupportedError, translate_errors
from maskjet.networks.exported.in_onnxruntime import open_in_onnxruntime
from maskjet.networks.exported.in_openvino import open_in_openvino
from maskjet.networks.exported.metadata import IR, ONNX
from maskjet.networks.exported.network_file import NetworkFile, read_network_file
from maskjet.networks.exported.running import FileRuntime
from maskjet.networks.rfdetr.steps import OneStage
from maskjet.networks.weights_file import check_is_file
from maskjet.postprocessing import Postprocessing


def serves(model: object) -> bool:
    """Whether this is a `NetworkFile`, or a path with the suffix of an exported file."""
    if isinstance(model, str | os.PathLike):
        return Path(model).suffix in (ONNX, IR)
    return isinstance(model, NetworkFile)


def load(
    model: str | os.PathLike[str],
    weights: str | os.PathLike[str] | None = None,
    input_size: tuple[int, int] | None = None,
) -> NetworkFile:
    """Read a file's inputs and outputs; see `networks.read_network`."""
    path = Path(model)
    if weights is not None:
        raise InputError(f"weights must be None for an exported file, which has its own, got {str(weights)!r}.")
    check_is_file(path, "model")
    file = read_network_file(path)
    if input_size not in (None, file.spec.input_hw):
        raise InputError(
            f"input_size must be that of the file, {file.spec.input_hw}, got {input_size}: export it with another one."
        )
    return file


def make_steps(network: NetworkFile, config: EngineConfig, postprocessing: Postprocessing) -> OneStage:
    """Open a file in its runtime.

    Raises:
        InputError: The config asks for a precision, a runtime or compiling that the file can't have.
        UnsupportedError: The runtime can't run the file on the device.
        MissingDependencyError: The runtime is not installed.
    """
    if config.precision not in ("auto", network.precision):
        raise InputError(
            f"precision must be 'auto' or {network.precision!r}, as {str(network.path)!r} was exported, "
            f"got {config.precision!r}."
        )
    if config.compile:
        raise InputError(f"compile must be None or False for an exported file, got {config.compile}.")
    runtime = _open(network, config.runtime, config.resolve_device())
    return OneStage(network.spec, runtime, config, postprocessing, runtime.precision, runtime.dtype)


def _open(file: NetworkFile, runtime: RuntimeName, device: torch.device) -> FileRuntime:
    """Open a file in a runtime; "auto" is the one in which the file was compared with its network."""
    fitting = ("openvino",) if file.path.suffix == IR else ("onnxruntime", "openvino")
    name = fitting[0] if runtime == "auto" else runtime
    if name not in fitting:
        raise InputError(f"runtime must be one of {('auto', *fitting)} for {str(file.path)!r}, got {runtime!r}.")
    with translate_errors(UnsupportedError, f"runtime={name!r} must be able to open {str(file.path)!r}, it is not"):
        session = (open_in_openvino if name == "openvino" else open_in_onnxruntime)(file, device)
    return FileRuntime(file, session, device)
