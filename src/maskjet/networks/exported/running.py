"""Exported files as the engine runs them: the same buffers and checks around each runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from maskjet.config import RuntimeName
from maskjet.errors import InputError, UnsupportedError, border
from maskjet.networks.exported.metadata import ENGINES
from maskjet.networks.exported.network_file import NetworkFile
from maskjet.networks.rfdetr.network import NetworkOutput

Call = Callable[[Tensor, Sequence[Tensor]], None]
"""Runs a file once: takes images and the tensors that its outputs are written to, contiguous and on the device.

Always for the same number of images. It runs on the current stream and does not wait for it, and one thread calls it
at a time.
"""


class Session(Protocol):
    """A file that a runtime has opened on a device."""

    name: str
    """The runtime with its version and where it runs: "ONNX Runtime 1.31.1 on the CPU, 2 threads"."""
    why_no_graph: str | None
    """Why calls can't be captured in a CUDA graph; None if they can."""

    largest: int | None
    """Most images that it takes at a time; None for any number."""

    def make_call(self) -> Call:
        """Make a call, whose state is its own."""


class FileRuntime:
    """An exported file behind the engine; see `engine.runtime.Runtime`. Runs once on zeros when it is made.

    Args:
        file: The file.
        session: The file, opened on the device.
        device: The device of the tensors.

    Raises:
        UnsupportedError: The runtime can't run the file.
    """

    def __init__(self, file: NetworkFile, session: Session, device: torch.device) -> None:
        self._file, self._device = file, device
        self._session: Session | None = session
        self._name = session.name
        self.why_no_graph = session.why_no_graph
        zeros = torch.zeros(1, *file.images.shape, dtype=file.images.dtype, device=device)
        self.for_batch(1)(zeros)

    def for_batch(self, batch: int, *size_hw: int) -> Callable[[Tensor], NetworkOutput]:  # noqa: ARG002
        """Allocate outputs for batches of this size; see `Runtime`."""
        if self._session is None:
            raise UnsupportedError("The model is closed; load it again.")
        file, step = self._file, self._session.largest or batch
        parts = [slice(start, start + step) for start in range(0, batch, step)]
        problem = f"{str(file.path)!r} must run in {self._name}, it does not"
        with border(UnsupportedError, problem):
            calls = [(part, self._session.make_call()) for part in parts]
        outputs = [torch.empty(batch, *each.shape, dtype=each.dtype, device=self._device) for each in file.outputs]
        masks = outputs[2] if len(outputs) > 2 else None

        def run(images: Tensor) -> NetworkOutput:
            with border(UnsupportedError, problem):
                for part, call in calls:
                    call(images[part], [each[part] for each in outputs])
            return NetworkOutput(outputs[0], outputs[1], masks)

        return run

    def release(self) -> None:
        """Let go of the file; buffers and calls that are in use keep what they need."""
        self._session = None

    def __str__(self) -> str:
        return self._name


def open_file(file: NetworkFile, runtime: RuntimeName, device: torch.device) -> FileRuntime:
    """Open a file in a runtime.

    Args:
        file: The file.
        runtime: The runtime. "auto" is TensorRT for its engines, and for ONNX files ONNX Runtime, which `export`
            compares them in. "tensorrt" of an ONNX file is TensorRT as ONNX Runtime's provider.
        device: Where to run.

    Raises:
        InputError: The runtime does not read such files.
        UnsupportedError: It can't run the file on the device.
        MissingDependencyError: It is not installed.
    """
    is_engine = file.path.suffix in ENGINES
    fitting = ("tensorrt",) if is_engine else ("onnxruntime", "openvino", "tensorrt")
    name = fitting[0] if runtime == "auto" else runtime
    if name not in fitting:
        raise InputError(f"runtime must be one of {('auto', *fitting)} for {str(file.path)!r}, got {runtime!r}.")
    session: Session
    with border(UnsupportedError, f"runtime={name!r} must be able to open {str(file.path)!r}, it is not"):
        if is_engine:
            from maskjet.networks.exported.in_tensorrt import TensorRtSession

            session = TensorRtSession(file, device)
        elif name == "openvino":
            from maskjet.networks.exported.in_openvino import OpenVinoSession

            session = OpenVinoSession(file, device)
        else:
            from maskjet.networks.exported.in_onnxruntime import OnnxRuntimeSession

            session = OnnxRuntimeSession(file, device, in_tensorrt=name == "tensorrt")
    return FileRuntime(file, session, device)
