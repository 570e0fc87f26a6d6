"""TensorRT engines built from ONNX files. Not run by maskjet's authors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from maskjet.errors import UnsupportedError, translate_errors
from maskjet.extras import require
from maskjet.files import replacing
from maskjet.networks.exported.in_tensorrt import BATCHES, make_log
from maskjet.networks.exported.network_file import NetworkFile, read_network_file


def check_building() -> None:
    """Check that engines can be built here, before any work.

    Raises:
        UnsupportedError: There is no NVIDIA GPU, which engines are built on.
        MissingDependencyError: TensorRT is not installed.
    """
    _require_tensorrt()
    if not torch.cuda.is_available():
        raise UnsupportedError("out must end in .onnx on a machine without an NVIDIA GPU: engines are built on theirs.")


def build_engine(source: Path, out: Path) -> None:
    """Build an engine of an ONNX file for the current GPU: strongly typed, so that what is float32 in it stays so.

    Raises:
        CheckpointError: The ONNX file can't be read.
        OutputError: The engine can't be written.
        UnsupportedError: TensorRT can't build it; the message says why.
    """
    file = read_network_file(source)
    with translate_errors(UnsupportedError, f"TensorRT must be able to build an engine of {str(source)!r}, it is not"):
        data = _build(_require_tensorrt(), file)
    with replacing(out) as temporary:
        temporary.write(data)


def _require_tensorrt() -> Any:
    return require("tensorrt", extra=None, purpose="maskjet export to an engine")


def _build(package: Any, file: NetworkFile) -> bytes:
    log = make_log(package)
    builder = package.Builder(log)
    # From TensorRT 11 on networks are strongly typed without a flag.
    flag = getattr(package.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = package.OnnxParser(network, log)
    _demand(parser.parse_from_file(str(file.path)), log, "can't read the file")
    profile = builder.create_optimization_profile()
    profile.set_shape(file.images.name, *((batch, *file.images.shape) for batch in BATCHES))
    config = builder.create_builder_config()
    _demand(config.add_optimization_profile(profile) >= 0, log, f"takes no batches of {BATCHES[0]} to {BATCHES[-1]}")
    built = builder.build_serialized_network(network, config)
    _demand(built is not None, log, "can't build it")
    return bytes(built)


def _demand(is_done: bool, log: Any, failure: str) -> None:
    if not is_done:
        raise UnsupportedError(f"TensorRT {failure}: {log.last or 'it does not say why'}.")
