"""TensorRT: engines on the caller's stream and tensors, which CUDA graphs capture. Not run by maskjet's authors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskjet.errors import UnsupportedError
from maskjet.host.extras import require
from maskjet.networks.exported.network_file import NetworkFile, Port
from maskjet.networks.exported.running import Call


class TensorRtSession:
    """An engine in TensorRT; see `Session`. Each call has an execution context, with memory of its own."""

    why_no_graph: str | None = None

    def __init__(self, file: NetworkFile, device: torch.device) -> None:
        if device.type != "cuda":
            raise UnsupportedError(f"{str(file.path)!r} needs an NVIDIA GPU, got device {device}.")
        # Not an extra of maskjet: its wheels are on NVIDIA's own index.
        self._package: Any = require("tensorrt", extra=None, purpose="runtime='tensorrt'")
        self._file, self._device = file, device
        log = make_log(self._package)
        self._runtime = self._package.Runtime(log)  # kept: engines hold no reference to their runtime
        self._engine = self._runtime.deserialize_cuda_engine(file.path.read_bytes())
        if self._engine is None:
            raise UnsupportedError(
                f"{str(file.path)!r} must be an engine of this GPU and of TensorRT {self._package.__version__}: "
                f"{log.last or 'TensorRT does not say why it is not'}."
            )
        self._check_ports()
        least, _, most = self._engine.get_tensor_profile_shape(file.images.name, 0)
        if least[0] != 1:
            raise UnsupportedError(f"{str(file.path)!r} must take single images, its batch is {least[0]} to {most[0]}.")
        self.largest: int | None = int(most[0])
        self.name = f"TensorRT {self._package.__version__} on {device}, not run by maskjet's authors"

    def _check_ports(self) -> None:
        """Check that the engine has the inputs and outputs of the ONNX file."""
        engine, file, package = self._engine, self._file, self._package
        names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        ports = (file.images, *file.outputs)
        if differing := sorted(names ^ {each.name for each in ports}):
            raise UnsupportedError(
                f"{str(file.path)!r} must have the inputs and outputs of the ONNX file beside it, {differing[0]!r} is "
                "in one of them only."
            )
        dtypes = {torch.float32: package.DataType.FLOAT, torch.float16: package.DataType.HALF}
        for port in ports:
            shape, dtype = tuple(engine.get_tensor_shape(port.name))[1:], engine.get_tensor_dtype(port.name)
            is_input = engine.get_tensor_mode(port.name) == package.TensorIOMode.INPUT
            if shape != port.shape or dtype != dtypes[port.dtype] or is_input != (port is file.images):
                raise UnsupportedError(
                    f"{port.name} of {str(file.path)!r} must be {port.dtype} {list(port.shape)} per image, as in the "
                    f"ONNX file beside it, got {dtype} {list(shape)}."
                )

    def make_call(self) -> Call:
        """Make a call with its own execution context; see `Session`."""
        context = self._engine.create_execution_context()
        if context is None:
            raise UnsupportedError("the GPU has no memory left for an execution context.")
        ports: tuple[Port, ...] = (self._file.images, *self._file.outputs)
        bound: list[tuple[int, ...]] = []  # shape, addresses: setting them would abort a graph capture

        def call(images: Tensor, outputs: Sequence[Tensor]) -> None:
            tensors = (images, *outputs)
            wanted = [tuple(images.shape), tuple(each.data_ptr() for each in tensors)]
            if bound != wanted:
                _demand(context.set_input_shape(ports[0].name, wanted[0]), f"takes no images of {wanted[0]}")
                for port, address in zip(ports, wanted[1], strict=True):
                    _demand(context.set_tensor_address(port.name, address), f"takes no memory for {port.name}")
                bound[:] = wanted
            stream = torch.cuda.current_stream(self._device).cuda_stream
            _demand(context.execute_async_v3(stream), "can't run")

        return call


def _demand(is_done: bool, failure: str) -> None:
    if not is_done:
        raise UnsupportedError(f"TensorRT's execution context {failure}.")


def make_log(package: Any) -> Any:
    """Make a TensorRT logger that keeps the `last` error, or "": failing calls give no reason themselves."""

    class KeptLog(package.ILogger):  # type: ignore[misc] # the package is known when it runs
        def __init__(self) -> None:
            package.ILogger.__init__(self)  # required by pybind11
            self.last = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (package.ILogger.INTERNAL_ERROR, package.ILogger.ERROR):
                self.last = message.strip().rstrip(".")

    return KeptLog()
