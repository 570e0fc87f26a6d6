"""OpenVINO on CPUs: float32 throughout, on our tensors' memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskjet.errors import UnsupportedError
from maskjet.host.extras import require
from maskjet.networks.exported.network_file import NetworkFile
from maskjet.networks.exported.running import Call


class OpenVinoSession:
    """A file in OpenVINO, with as many threads as PyTorch has; see `Session`.

    On CPUs with bfloat16 OpenVINO would lower the precision by itself, which moves scores of the demo model by 0.10.
    A file of float16 is widened: it computes in float32 with rounded weights.
    """

    why_no_graph = "OpenVINO runs on CPUs"

    def __init__(self, file: NetworkFile, device: torch.device) -> None:
        if device.type != "cpu":
            raise UnsupportedError(f"runtime='openvino' runs on CPUs, got device {device}: use the device 'cpu'.")
        package = require("openvino", extra="openvino", purpose="runtime='openvino'")
        self._package, self._file = package, file
        threads = torch.get_num_threads()
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "EXECUTION_MODE_HINT": "ACCURACY",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
        }
        self._compiled: Any = package.Core().compile_model(str(file.path), "CPU", settings)
        version = package.__version__.partition("-")[0]
        self.name = f"OpenVINO {version} on the CPU in float32, {threads} threads"

    def make_call(self) -> Call:
        """Make a call with its own inference request; see `Session`."""
        request = self._compiled.create_infer_request()

        def call(images: Tensor, outputs: Sequence[Tensor]) -> None:
            ports = (self._file.images, *self._file.outputs)
            for port, tensor in zip(ports, (images, *outputs), strict=True):
                request.set_tensor(port.name, self._package.Tensor(tensor.numpy(), shared_memory=True))
            request.infer()
            for port, tensor in zip(self._file.outputs, outputs, strict=True):
                if tuple(made := request.get_tensor(port.name).shape) != tuple(tensor.shape):
                    raise ValueError(f"{port.name} must be {list(tensor.shape)}, got {list(made)}")

        return call
