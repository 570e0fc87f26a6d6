"""Quantise a network by NNCF, step by step, until the result keeps its budget."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nncf
import numpy as np
from numpy.typing import NDArray

from maskjet.config import EngineConfig
from maskjet.engine.isolation import isolated
from maskjet.errors import InputError, UnsupportedError
from maskjet.host.files import naming
from maskjet.host.machine import BF16_PRODUCTS, cpu_features
from maskjet.model import Model
from maskjet.networks.exported import conversion
from maskjet.networks.exported.in_openvino import settings_for
from maskjet.networks.exported.metadata import IR, FilePrecision, Metadata
from maskjet.networks.exported.network_file import load_openvino, read_network_file
from maskjet.networks.rfdetr import RFDETR
from maskjet.networks.state_dict import digest_weights
from maskjet.quantization.certificate import Certificate, Certifier
from maskjet.quantization.images import Images
from maskjet.sources.images import to_image

_QUANTISED = ("Convolution", "GroupConvolution", "MatMul")
"""Types of operators whose inputs are quantised."""
_LEFT_OUT = 4  # the second step leaves every fourth layer in float32: those that err most
_PROBED = 8  # images by which these are found

Inputs = Sequence[NDArray[np.float32]]
"""Inputs of the network for calibration, each [1, 3, H, W]."""


class _Step(NamedTuple):
    """A step of the ladder from fast to exact."""

    precision: FilePrecision
    """Precision of all layers but the decoder, the heads and `kept`, which stay float32."""
    kept: Sequence[str]
    """Names of further layers."""
    model: Any
    """The `openvino.Model`."""


@isolated(inference=False)
def quantize_network(
    network: RFDETR, folder: Path, out: Path, budget: float | None, on_progress: Callable[[], object]
) -> Certificate:
    """Quantise a network in eval mode, float32, on the CPU; raises as `quantize`."""
    images = Images.find(folder)
    inputs: list[NDArray[np.float32]] = []
    with Model(network, EngineConfig(device="cpu", runtime="torch")) as model:
        certifier = Certifier(model, digest_weights(network), images, budget, on_progress)
        keep = network.register_forward_pre_hook(lambda _, given: inputs.append(given[0].numpy().copy()))
        sizes = []
        for path in images.calibration:
            model.predict(image := to_image(path, "images"))
            sizes.append(image.shape[:2])
        keep.remove()
        _check_sizes(sizes, network.spec.input_hw)
        with naming(str(out)), tempfile.TemporaryDirectory(dir=out.parent) as temporary:
            made = Path(temporary, out.name)
            for step in _steps(network, inputs, Path(temporary)):
                conversion.write(step.model, made, Metadata(network.spec, step.precision))
                with Model(read_network_file(made), EngineConfig(device="cpu")) as smaller:
                    certificate = certifier.certify(smaller, step.kept, out)
                if certificate.is_kept:
                    break
            certifier.write_page(certificate, out.with_suffix(".html"))
            if not certificate.is_kept:
                broken = "; ".join(str(each) for each in certificate.verdicts if not each.is_kept)
                raise UnsupportedError(
                    f"budget must allow what {certificate.precision} loses, it is {broken}. No file is written; "
                    f"{str(out.with_suffix('.html'))!r} shows the differences."
                )
            metadata = Metadata(network.spec, step.precision, certificate.as_dict())
            conversion.write(step.model, made, metadata)
            for suffix in (".bin", out.suffix):  # the one that names the other comes last
                made.with_suffix(suffix).replace(out.with_suffix(suffix))
    return certificate


def _check_sizes(sizes: Sequence[tuple[int, ...]], input_hw: tuple[int, int]) -> None:
    """Raise InputError if most images are smaller than the network's input: enlarged, they are no measure of it."""
    small = [size for size in sizes if size[0] < input_hw[0] and size[1] < input_hw[1]]
    if 2 * len(small) > len(sizes):
        raise InputError(
            f"images must have the size that the model will see, {len(small)} of {len(sizes)} are smaller than its "
            f"input of {input_hw[1]}×{input_hw[0]} pixels, as {small[0][1]}×{small[0][0]}."
        )


def _steps(network: RFDETR, inputs: Inputs, folder: Path) -> Iterator[_Step]:
    """The steps of the ladder, each made when it is asked for."""
    path = folder / f"half{IR}"  # weights that stay float are halved before, as OpenVINO does not in quantised models
    conversion.write(conversion.to_openvino(network), path, Metadata(network.spec, "fp16"), is_half=True)
    model = load_openvino("quantizing").Core().read_model(str(path))
    names = [op.get_friendly_name() for op in model.get_ordered_ops()]
    decoder = [name for name in names if name.startswith(conversion.DECODER)]
    first = _quantise(model, inputs, decoder)
    yield _Step("int8", (), first)
    worst = _find_worst(model, first, inputs[:_PROBED])
    yield _Step("int8", worst, _quantise(model, inputs, [*decoder, *worst]))
    if BF16_PRODUCTS & cpu_features():
        yield _Step("bf16", (), model)


def _quantise(model: Any, inputs: Inputs, float_ops: Sequence[str]) -> Any:
    """Quantise a model but for the named operators."""
    logging.getLogger("nncf").setLevel(logging.ERROR)  # nncf.set_log_level also sets other people's handlers
    with contextlib.redirect_stdout(io.StringIO()):  # progress bars
        return nncf.quantize(
            model.clone(),
            nncf.Dataset(inputs),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(inputs),
            ignored_scope=nncf.IgnoredScope(names=list(float_ops), validate=False),
        )


def _find_worst(model: Any, quantised: Any, inputs: Inputs) -> list[str]:
    """Name the quantised layers that add most to the error, relative to their outputs, that reaches them."""
    layers = [
        op.get_friendly_name()
        for op in model.get_ordered_ops()
        if op.get_type_name() in _QUANTISED and not op.get_friendly_name().startswith(conversion.DECODER)
    ]
    exact, rounded = (_run_layers(each, layers, inputs) for each in (model, quantised))
    errors = np.array([np.linalg.norm(a - b) / np.linalg.norm(a) for a, b in zip(exact, rounded, strict=True)])
    added = np.diff(errors, prepend=0)
    return [layers[number] for number in np.argsort(-added)[: len(layers) // _LEFT_OUT]]


def _run_layers(model: Any, layers: Sequence[str], inputs: Inputs) -> list[NDArray[np.float32]]:
    """The outputs of some layers for all inputs, each as one vector."""
    probed = model.clone()
    by_name = {op.get_friendly_name(): op for op in probed.get_ops()}
    probed.add_outputs([by_name[name].output(0) for name in layers])
    compiled = load_openvino("quantizing").Core().compile_model(probed, "CPU", settings_for("fp32"))
    first = len(compiled.outputs) - len(layers)
    runs = []
    for images in inputs:
        outputs = compiled(images)
        runs.append([outputs[first + number].ravel() for number in range(len(layers))])
    return [np.concatenate(each) for each in zip(*runs, strict=True)]
