"""RF-DETR for other runtimes: ONNX files, with metadata about their network."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from maskjet.config import EngineConfig
from maskjet.errors import InputError, UnsupportedError, suggest
from maskjet.export.exported import ExportedFile
from maskjet.host import process
from maskjet.host.extras import require
from maskjet.networks.exported.metadata import LARGEST_BATCH, ONNX, Precision

if TYPE_CHECKING:
    from torch import nn

    from maskjet.networks.rfdetr import RFDETR

__all__ = ["ExportedFile", "Precision", "export"]


def export(
    model: str | os.PathLike[str] | nn.Module,
    out: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] | None = None,
    input_size: tuple[int, int] | None = None,
    precision: Precision = "fp32",
    batch: int | None = None,
    antialias: bool = False,
) -> ExportedFile:
    """Write a network to an ONNX file of opset 17, and compare the file with the network.

    docs/export.md says what a file takes and gives, which metadata it has, and how it is compared.

    Args:
        model: "demo", a named size with `weights`, or a checkpoint's path, as `maskjet.load` takes them; or an
            `RFDETR`, which is left as it is.
        out: The file, with the suffix .onnx. Written beside it, compared, and renamed.
        weights: Checkpoint of a named size.
        input_size: (height, width) of the network's input, as for `maskjet.load`; None for the checkpoint's own.
        precision: "fp32", or "fp16", in which the layers that give scores and boxes stay float32.
        batch: Images per run of the file, 1 to 256; None for any number.
        antialias: Whether the file says that frames are resized with antialias, as in training, so that `load` does it.

    Returns:
        What was written, and by how much it differs from the network.

    Raises:
        InputError: An argument is not as above.
        CheckpointError: The weights can't be read.
        OutputError: `out` can't be written; an existing file is kept.
        UnsupportedError: The model is a torchvision detector, can't be exported, or differs from the file; no file
            is written.
        MissingDependencyError: onnx-ir, onnxruntime or onnxscript is missing.

    Examples:
        >>> import tempfile
        >>> import maskjet.export
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = maskjet.export.export("demo", f"{folder}/demo.onnx")
        ...     with maskjet.load(file.path, device="cpu") as model:
        ...         print(model.spec.class_names[0])
        car
    """
    path, input_hw = _check_out(out), EngineConfig(input_size=input_size).input_size
    if precision not in get_args(Precision):
        end = suggest(precision, get_args(Precision))
        raise InputError(f"precision must be one of {get_args(Precision)}, got {precision!r}{end}")
    if batch is not None and (type(batch) is not int or not 1 <= batch <= LARGEST_BATCH):
        raise InputError(f"batch must be a whole number from 1 to {LARGEST_BATCH}, or None for any, got {batch!r}.")
    for package in ("onnx_ir", "onnxruntime", "onnxscript"):
        require(package, extra="onnx", purpose="maskjet export")
    process.check_fork()
    from maskjet.export.exporting import export_network

    network = read_rfdetr(model, weights, input_hw)
    if antialias:
        network.spec = replace(network.spec, antialias=antialias)
    return export_network(network, path, precision, batch)


def _check_out(out: str | os.PathLike[str]) -> Path:
    if not isinstance(out, str | os.PathLike):
        raise InputError(f"out must be a path, got a {type(out).__name__}.")
    path = Path(out)
    if path.suffix != ONNX:
        raise InputError(f"out must end in .onnx, got {str(path)!r}.")
    return path


def read_rfdetr(
    model: str | os.PathLike[str] | nn.Module,
    weights: str | os.PathLike[str] | None,
    input_size: tuple[int, int] | None,
) -> RFDETR:
    """Read a private copy of an RF-DETR, in eval mode, float32, on the CPU; raises as `export`."""
    from torch.nn import Module

    from maskjet.networks import find_family
    from maskjet.networks.exported import family as exported_family
    from maskjet.networks.rfdetr import RFDETR, family

    if isinstance(model, RFDETR):
        if weights is not None:
            raise InputError("weights must be None for a network, which has its own.")
        if input_size not in (None, model.spec.input_hw):
            raise InputError(f"input_size must be None for a network of {model.spec.input_hw}, got {input_size}.")
        return copy.deepcopy(model).cpu().float().eval().requires_grad_(requires_grad=False)
    found = find_family(model)
    if found is exported_family:
        raise UnsupportedError(f"model must be weights to be exported, got {str(model)!r}, which is exported.")
    if found is not family or isinstance(model, Module):
        got = repr(model) if isinstance(model, str) else f"a {type(model).__name__}"
        raise UnsupportedError(
            f"model must be an RF-DETR to be exported, got {got}: for torchvision's detectors use "
            "torch.onnx.export(..., dynamo=False), and maskjet.rewrites.optimize_onnx makes the file faster."
        )
    return family.load(model, weights, input_size)
