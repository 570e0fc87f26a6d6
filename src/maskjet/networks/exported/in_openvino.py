"""OpenVINO on CPUs: reads and writes our tensors in place; activations are float32 where a file is not INT8."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskjet.errors import UnsupportedError
from maskjet.host import cache
from maskjet.host.machine import INT8_PRODUCTS, cpu_features
from maskjet.networks.exported.network_file import NetworkFile, load_openvino
from maskjet.networks.exported.running import Call, Session

SETTINGS = {
    "INFERENCE_PRECISION_HINT": "f32",  # bfloat16, which CPUs with it get otherwise, moves the demo's scores by 0.10
    "EXECUTION_MODE_HINT": "ACCURACY",
    "PERFORMANCE_HINT": "LATENCY",
}
"""OpenVINO's settings for a network that computes as its file says."""


def open_in_openvino(file: NetworkFile, device: torch.device) -> Session:
    """Open a file in OpenVINO, with as many threads as PyTorch has.

    Each batch size has a network of its own, since a free one costs INT8 a quarter of its speed; what is compiled for
    them is kept in the cache. A file of float16 is widened: it computes in float32 with rounded weights.
    """
    if device.type != "cpu":
        raise UnsupportedError(f"runtime='openvino' runs on CPUs, got device {device}: use the device 'cpu'.")
    package = load_openvino("runtime='openvino'")
    threads = torch.get_num_threads()
    settings = {**SETTINGS, "INFERENCE_NUM_THREADS": threads}
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

    precision = {"int8": "INT8"}.get(file.precision, "float32")
    name = f"OpenVINO {package.__version__.partition('-')[0]} on the CPU in {precision}, {threads} threads"
    if precision == "INT8" and not INT8_PRODUCTS & cpu_features():
        name += "; without VNNI or AMX, which this CPU lacks, INT8 may be no faster than float32"
    return Session(name, "OpenVINO runs on CPUs", make_call)
