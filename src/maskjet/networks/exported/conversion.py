"""RF-DETR in OpenVINO's format: converted once, compared with the network, and kept in the cache."""

from __future__ import annotations

import copy
import hashlib
import tempfile
import time
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from maskjet.config import EngineConfig, torch_dtype
from maskjet.engine.isolation import isolated
from maskjet.errors import InputError, UnsupportedError, translate_errors
from maskjet.host import cache
from maskjet.host.files import naming
from maskjet.host.machine import BF16_PRODUCTS, cpu_features
from maskjet.networks import demo
from maskjet.networks.exported.in_openvino import open_in_openvino, settings_for
from maskjet.networks.exported.metadata import IMAGES, IR, OUTPUTS, FilePrecision, Metadata
from maskjet.networks.exported.network_file import NetworkFile, load_openvino, read_network_file
from maskjet.networks.exported.running import FileRuntime
from maskjet.networks.rfdetr.network import RFDETR
from maskjet.networks.state_dict import digest_weights
from maskjet.version import __version__

DECODER = ("__module.transformer", "__module.class_embed", "__module.bbox_embed")
"""Beginnings of names in a converted network: where small errors move boxes, or change which tokens are decoded."""
_AS_WRITTEN = {"name": "DisablePrecisionConversion", "version": "0", "value": "dynamic:dynamic"}
"""The mark, in OpenVINO's files, of a layer that computes in its own type, whatever the runtime is set to."""
_NAME = f"network{IR}"
_SLOWER = "slower"  # name of a file beside a conversion that PyTorch outran
_ROUNDS = 5  # runs of each by which that is measured


def choose(network: RFDETR, config: EngineConfig, device: torch.device) -> FileRuntime | None:
    """Open the file that OpenVINO runs in place of a network on the CPU; None if PyTorch runs it.

    With the runtime "openvino" it is converted if it never was; with "auto" a conversion is taken that is in the cache
    and was faster than PyTorch when it was made. The precision "int8" is that of the demo's file.

    Raises:
        InputError: The precision or compiling can't be had with this runtime, or there is no INT8 file of them.
        UnsupportedError: The network can't be converted, the conversion differs from it, or the device is a GPU.
        MissingDependencyError: openvino is not installed.
    """
    file = _find(network, config)
    return None if file is None else FileRuntime(file, open_in_openvino(file, device), device)


def _find(network: RFDETR, config: EngineConfig) -> NetworkFile | None:
    precision = config.precision
    if precision == "int8" or config.runtime == "openvino":
        if config.runtime not in ("auto", "openvino") or config.compile:
            raise InputError(
                "runtime must be 'openvino' or 'auto' for the precision 'int8', and has 'fp32' and 'bf16', too, none "
                f"of them compiled; got {config.runtime!r}, {precision!r} and compile={config.compile}."
            )
        if precision == "int8":
            return _demo_int8(network)
        return _convert(network, "bf16" if precision == "bf16" else "fp32")
    if config.runtime != "auto" or precision not in ("auto", "fp32") or config.compile:
        return None
    root = _root()
    if root is None or not root.exists() or _version() is None:  # most have none, and need not wait for the digest
        return None
    folder = root / _key(network, "fp32")
    return read_network_file(folder / _NAME) if folder.exists() and not (folder / _SLOWER).exists() else None


def _demo_int8(network: RFDETR) -> NetworkFile:
    """The file of the demo model that is part of the package; its certificate names the weights."""
    file = read_network_file(Path(demo.__file__).with_name(f"int8{IR}"))
    if file.certificate["weights"] != digest_weights(network) or file.spec.input_hw != network.spec.input_hw:
        raise InputError(
            "precision must not be 'int8' for these weights: maskjet quantize writes a file of INT8 from them."
        )
    return file


def to_openvino(network: RFDETR) -> Any:
    """Convert a network in eval mode, float32, on the CPU: an `openvino.Model` of any batch size."""
    package = load_openvino("converting a network")
    images = torch.zeros(1, 3, *network.spec.input_hw, dtype=torch.float32, device="cpu")
    problem = "model must be a network that OpenVINO can convert"
    with isolated(inference=False), warnings.catch_warnings(), translate_errors(UnsupportedError, problem):
        warnings.simplefilter("ignore")  # of tracing: Python's numbers become constants, which holds for sizes
        model = package.convert_model(network, example_input=images)
    model.reshape({model.inputs[0]: [-1, *images.shape[1:]]})
    model.inputs[0].get_tensor().set_names({IMAGES})
    for output, name in zip(model.outputs, OUTPUTS, strict=False):
        output.get_tensor().set_names({name})
    return model


def write(model: Any, path: Path, metadata: Metadata, *, is_half: bool = False) -> None:
    """Write an `openvino.Model` with metadata: `path`, and its weights, rounded to float16 if `is_half`, beside it.

    With the precision "bf16" the decoder and the heads for classes and boxes are marked to stay float32.
    """
    package = load_openvino("writing a network")
    for key, text in metadata.as_properties().items():
        model.set_rt_info(text, key)
    package.save_model(model, str(path), compress_to_fp16=is_half)
    tree = ET.parse(path)
    for element in tree.iter():  # without indentation, a fifth of the file
        element.text, element.tail = (element.text or "").strip(), None
    info = tree.find("rt_info")
    if info is not None and (notes := info.find("nncf")) is not None:
        info.remove(notes)
    if metadata.precision == "bf16":
        for layer in tree.iter("layer"):
            types = {port.get("precision") for port in layer.iterfind("output/port")}
            if types == {"FP32"} and layer.get("type") != "Const" and layer.get("name", "").startswith(DECODER):
                marks = layer.find("rt_info")
                if marks is None:
                    marks = ET.Element("rt_info")
                    layer.insert(int(layer.find("data") is not None), marks)
                ET.SubElement(marks, "attribute", _AS_WRITTEN)
    tree.write(path)


def _convert(network: RFDETR, precision: FilePrecision) -> NetworkFile:
    """Read a network's conversion from the cache, or make it, compare it with the network, and keep it there."""
    load_openvino("runtime='openvino'")
    root = _root()
    if root is None:
        raise UnsupportedError("runtime='openvino' needs a folder for conversions: name one in MASKJET_CACHE_DIR.")
    if precision == "bf16" and not BF16_PRODUCTS & cpu_features():
        raise UnsupportedError("precision='bf16' with the runtime 'openvino' needs a CPU with AVX512-BF16 or AMX.")
    folder = root / _key(network, precision)
    if not folder.exists():
        with cache.telling(), naming(str(folder), "MASKJET_CACHE_DIR"):
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root) as temporary:
                made = Path(temporary, "made")
                made.mkdir()
                write(to_openvino(network), made / _NAME, Metadata(network.spec, precision))
                _check(made / _NAME, network, precision)
                if _is_slower(read_network_file(made / _NAME), network):
                    (made / _SLOWER).touch()
                with suppress(FileExistsError):  # another process was first
                    made.rename(folder)
    return read_network_file(folder / _NAME)


def _root() -> Path | None:
    folder = cache.folder()
    return folder and folder / "converted"


def _key(network: RFDETR, precision: FilePrecision) -> str:
    """Name of a network's conversion, for this CPU and these versions alone."""
    versions = (sorted(cpu_features()), _version(), __version__)
    stated = (digest_weights(network), network.spec.input_hw, precision, *versions)
    return hashlib.sha256(repr(stated).encode()).hexdigest()[:24]


def _version() -> str | None:
    try:
        return version("openvino")
    except PackageNotFoundError:
        return None


def _check(path: Path, network: RFDETR, precision: FilePrecision) -> None:
    """Compare a conversion with its network, with the tokens that it selects as further outputs."""
    from maskjet.networks.exported.comparing import TOKEN_LOGITS, TOKENS, compare

    core = load_openvino("a comparison").Core()
    compared = core.read_model(str(path))
    (selecting,) = (each for each in compared.get_ops() if each.get_type_name() == "TopK")
    compared.add_outputs([selecting.input_value(0), selecting.output(1)])
    compiled = core.compile_model(compared, "CPU", settings_for(precision))
    names = (*OUTPUTS[: len(compared.outputs) - 2], TOKEN_LOGITS, TOKENS)

    def run(images: Tensor) -> dict[str, Tensor]:
        outputs = compiled(images.float().numpy())
        found = {name: torch.from_numpy(outputs[position]) for position, name in enumerate(names)}
        return found | {TOKENS: found[TOKENS].long()}

    dtype = torch_dtype(precision)
    cast = network if precision == "fp32" else copy.deepcopy(network).cast(dtype)
    compare(run, f"OpenVINO {_version()}", network, cast, dtype)


def _is_slower(file: NetworkFile, network: RFDETR) -> bool:
    """Whether PyTorch runs a network faster than OpenVINO its conversion; both in turns."""
    device = torch.device("cpu")
    images = torch.rand(1, 3, *network.spec.input_hw, dtype=torch.float32, device=device)
    times: dict[Callable[..., Any], list[float]] = {
        network: [],
        FileRuntime(file, open_in_openvino(file, device), device).for_batch(1): [],
    }
    with isolated():
        for _ in range(_ROUNDS):
            for run, spent in times.items():
                begin = time.perf_counter()
                run(images)
                spent.append(time.perf_counter() - begin)
    by_torch, by_openvino = map(median, times.values())
    return by_openvino >= by_torch
