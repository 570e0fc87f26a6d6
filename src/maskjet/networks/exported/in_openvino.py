"""OpenVINO on CPUs: float32 throughout, on our tensors' memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskjet.errors import UnsupportedError
from maskjet.host.extras import require
from maskjet.networks.exported.network_file import NetworkFile
from maskjet.networks.exported.running import Call, Session


def open_in_openvino(file: NetworkFile, device: torch.device) -> Session:
    """Open a file in OpenVINO, with as many threads as PyTorch has.

    On CPUs with bfloat16 OpenVINO would lower the precision by itself, which moves scores of the demo model by 0.10.
    A file of float16 is widened: it computes in float32 with rounded weights.
    """
    if device.type != "cpu":
        raise UnsupportedError(f"runtime='openvino' runs on CPUs, got device {device}: use the device 'cpu'.")
    package = require("openvino", extra="openvino", purpose="runtime='openvino'")
    threads = torch.get_num_threads()
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled: Any = package.Core().compile_model(str(file.path), "CPU", settings)

    def make_call() -> Call:
        request = compiled.create_infer_request()

        def call(images: Tensor, outputs: Sequence[Tensor]) -> None:
            for port, tensor in zip((file.images, *file.outputs), (images, *outputs), strict=True):
                request.set_tensor(port.name, package.Tensor(tensor.numpy(), shared_memory=True))
            request.infer()
            for port, tensor in zip(file.outputs, outputs, strict=True):
                if tuple(made := request.get_tensor(port.name).shape) != tuple(tensor.shape):
                    raise ValueError(f"{port.name} must be {list(tensor.shape)}, got {list(made)}")

        return call

    name = f"OpenVINO {package.__version__.partition('-')[0]} on the CPU in float32, {threads} threads"
    return Session(name, "OpenVINO runs on CPUs", make_call)
