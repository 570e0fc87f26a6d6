"""INT8 files of RF-DETR for CPUs, each with a certificate of what it loses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from maskjet.checks import check_fraction
from maskjet.errors import InputError
from maskjet.host import process
from maskjet.host.extras import require
from maskjet.networks.exported.metadata import IR
from maskjet.quantization.certificate import Certificate

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Certificate", "quantize"]


def quantize(
    model: str | os.PathLike[str] | nn.Module,
    images: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] | None = None,
    input_size: tuple[int, int] | None = None,
    budget: float | None = None,
    on_progress: Callable[[], object] = lambda: None,
) -> Certificate:
    """Write an RF-DETR as INT8 for OpenVINO on CPUs, if images show that it loses no more than the budget.

    Half of the images, 100 at most, give the ranges of activations. All others certify the file: OpenVINO runs it and
    PyTorch the float32 network, and what they find is compared. The decoder and the heads for classes and boxes stay
    float32. If that loses too much, so do the layers that err most. If that does, too, no file is written. In any case
    a page beside `out`, with the suffix .html, shows what was measured, and the images that differ most.

    Args:
        model: "demo", a named size with `weights`, or a checkpoint's path, as `maskjet.load` takes them; or an
            `RFDETR`, which is left as it is.
        images: A folder of images such as the model will see, at least 40; with annotations, as `maskjet.evaluate`
            takes them, AP is measured, too.
        out: The file, with the suffix .xml; its weights are written beside it, with the suffix .bin.
        weights: Checkpoint of a named size.
        input_size: (height, width) of the network's input, as for `maskjet.load`; None for the checkpoint's own.
        budget: With annotations the largest loss of AP, of boxes and of masks, 0..1: the upper bound of the 95 %
            interval of a paired bootstrap over the images; None for 0.01. Without them the largest share of the
            detections that only one of both finds; None for 0.02.
        on_progress: Called after each image that certifies, for each of both networks.

    Returns:
        What was measured; the file's metadata have it, too.

    Raises:
        InputError: An argument is not as above, or the images are too few, smaller than the network's input, or show
            nothing.
        SourceError: An image or the annotations can't be read.
        CheckpointError: The weights can't be read.
        UnsupportedError: The model is no RF-DETR, or INT8 loses more than the budget.
        OutputError: A file can't be written.
        MissingDependencyError: nncf or openvino is missing; or hotcoco, for annotations.

    Examples:
        >>> import maskjet
        >>> maskjet.quantize("demo", "streets", "demo-int8.xml")  # doctest: +SKIP
        >>> maskjet.load("demo-int8.xml", device="cpu")  # doctest: +SKIP
    """
    for name, path in (("images", images), ("out", out)):
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"{name} must be a path, got a {type(path).__name__}.")
    if Path(out).suffix != IR:
        raise InputError(f"out must end in {IR}, got {str(out)!r}.")
    if budget is not None:
        check_fraction("budget", budget)
    os.environ.setdefault("NNCF_CI", "1")  # else it would tell Intel about each use
    for package in ("openvino", "nncf"):
        require(package, extra="quantize", purpose="maskjet quantize")
    process.check_fork()
    from maskjet.export import read_rfdetr
    from maskjet.quantization.quantizing import quantize_network

    network = read_rfdetr(model, weights, input_size)
    return quantize_network(network, Path(images), Path(out), budget, on_progress)
