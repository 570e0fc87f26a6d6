"""ONNX Runtime: reads and writes our tensors in place, by I/O binding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskjet.errors import UnsupportedError
from maskjet.host.extras import require
from maskjet.networks.exported.network_file import NetworkFile
from maskjet.networks.exported.running import Call, Session

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_NUMPY = {torch.float32: np.float32, torch.float16: np.float16}


def open_in_onnxruntime(file: NetworkFile, device: torch.device) -> Session:
    """Open a file in ONNX Runtime, with as many threads as PyTorch has.

    On a GPU it works on a stream of its own, as a session's stream can't be changed. The caller's stream and this one
    wait for each other.
    """
    package = require("onnxruntime", extra="onnx", purpose="runtime='onnxruntime'")
    threads = torch.get_num_threads()
    stream: torch.cuda.Stream | None = None
    providers: list[tuple[str, dict[str, str]]] = [(_CPU, {})]
    options = package.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only; they are raised as well
    place = f"the CPU, {threads} threads"
    if device.type == "cuda":
        if _CUDA not in package.get_available_providers():
            raise UnsupportedError(
                f"runtime='onnxruntime' on {device} needs onnxruntime-gpu, here is a package without CUDA: "
                "install that instead, or use the device 'cpu'."
            )
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        chosen = {
            "device_id": str(device.index),
            "user_compute_stream": str(stream.cuda_stream),
            "use_tf32": str(int(torch.get_float32_matmul_precision() != "highest")),  # as PyTorch's matrix products
        }
        providers.insert(0, (_CUDA, chosen))
        place = str(device)
    run_options = package.RunOptions()
    # No host synchronisation: the caller's stream waits instead.
    run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    session: Any = package.InferenceSession(str(file.path), options, providers=providers)
    if device.type == "cuda" and providers[0][0] not in session.get_providers():
        raise UnsupportedError(f"runtime='onnxruntime' can't use {device}: its libraries can't be loaded.")

    def make_call(_batch: int) -> Call:
        binding = session.io_binding()

        def call(images: Tensor, outputs: Sequence[Tensor]) -> None:
            for bind, port, tensor in (
                (binding.bind_input, file.images, images),
                *((binding.bind_output, *each) for each in zip(file.outputs, outputs, strict=True)),
            ):
                shape = tuple(tensor.shape)
                bind(port.name, device.type, device.index or 0, _NUMPY[port.dtype], shape, tensor.data_ptr())
            if stream is None:
                session.run_with_iobinding(binding, run_options)
                return
            current = torch.cuda.current_stream(device)
            stream.wait_stream(current)
            session.run_with_iobinding(binding, run_options)
            current.wait_stream(stream)

        return call

    name = f"ONNX Runtime {package.__version__} on {place}"
    return Session(name, "ONNX Runtime's calls can't be captured", make_call)
