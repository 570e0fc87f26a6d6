"""OpenVINO on CPUs: reads and writes our tensors in place, and computes as a file says."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskjet.errors import UnsupportedError
from maskjet.host import cache
from maskjet.host.machine import BF16_PRODUCTS, INT8_PRODUCTS, cpu_features
from maskjet.networks.exported.metadata import FilePrecision
from maskjet.networks.exported.network_file import NetworkFile, load_openvino
from maskjet.networks.exported.running import Call, Session

_NAMES = {"bf16": "bfloat16", "int8": "INT8"}
_PRODUCTS = {"bf16": BF16_PRODUCTS, "int8": INT8_PRODUCTS}


def settings_for(precision: FilePrecision) -> dict[str, str]:
    """OpenVINO's settings for a network of a precision."""
    return {
        # bfloat16, which CPUs with it get otherwise, moves the demo's scores by 0.10
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "PERFORMANCE_HINT": "LATENCY",
    }


def open_in_openvino(file: NetworkFile, device: torch.device) -> Session:
    """Open a file in OpenVINO, with as many threads as PyTorch has.

    Each batch size has a network of its own, since a free one costs INT8 a quarter of its speed; what is compiled for
    them is kept in the cache. A file of float16 is widened: it computes in float32 with rounded weights.
    """
    if device.type != "cpu":
        raise UnsupportedError(f"runtime='openvino' runs on CPUs, got device {device}: use the device 'cpu'.")
    package = load_openvino("runtime='openvino'")
    threads = torch.get_num_threads()
    settings: dict[str, Any] = {**settings_for(file.precision), "INFERENCE_NUM_THREADS": threads}
    if (folder := cache.writable("openvino")) is not None:
        settings["CACHE_DIR"] = str(folder)
    core: Any = package.Core()
    model = core.read_model(str(file.path))

    @functools.cache
    def compile_for(batch: int) -> Any:
        sized = model.clone()
        if file.batch is None:
            sized.reshape({file.images.name: [batch, *file.images.shape]})
        return core.compile_model(sized, "CPU", settings)

    def make_call(batch: int) -> Call:
        request = compile_for(batch).create_infer_request()

        def call(images: Tensor, outputs: Sequence[Tensor]) -> None:
            for port, tensor in zip((file.images, *file.outputs), (images, *outputs), strict=True):
                request.set_tensor(port.name, package.Tensor(tensor.numpy(), shared_memory=True))
            request.infer()
            for port, tensor in zip(file.outputs, outputs, strict=True):
                if tuple(made := request.get_tensor(port.name).shape) != tuple(tensor.shape):
                    raise ValueError(f"{port.name} must be {list(tensor.shape)}, got {list(made)}")

        return call

    precision = _NAMES.get(file.precision, "float32")
    name = f"OpenVINO {package.__version__.partition('-')[0]} on the CPU in {precision}, {threads} threads"
    products = _PRODUCTS.get(file.precision)
    if products is not None and not products & cpu_features():
        name += f"; this CPU has no instructions for products of {precision}, which may be no faster than float32"
    return Session(name, "OpenVINO runs on CPUs", make_call)
