"""Runtime adapter for exported files: buffers and checks shared by all inference runtimes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from maskjet.errors import UnsupportedError, translate_errors
from maskjet.networks.exported.network_file import NetworkFile
from maskjet.networks.rfdetr.network import NetworkOutput

Call = Callable[[Tensor, Sequence[Tensor]], None]
"""Runs a file once: reads images and writes the outputs into given tensors, contiguous and on the device.

The batch size is fixed. It runs on the current stream without waiting for it, and is called by one thread at a
time.
"""


class Session(NamedTuple):
    """An exported file opened by an inference runtime on a device."""

    name: str
    """Runtime, version and device, such as "ONNX Runtime 1.31.1 on the CPU, 2 threads"."""
    why_no_graph: str
    """Why calls can't be captured in a CUDA graph."""
    make_call: Callable[[int], Call]
    """Makes a call for a batch size, with its own state, such as bindings."""


class FileRuntime:
    """`Runtime` of an exported file; the constructor runs it once on zeros. See `engine.runtime`.

    Raises:
        UnsupportedError: The runtime can't run the file.
    """

    def __init__(self, file: NetworkFile, session: Session, device: torch.device) -> None:
        self._file, self._device = file, device
        self._session: Session | None = session
        self._name, self.precision, self.dtype = session.name, file.precision, file.images.dtype
        self.why_no_graph = session.why_no_graph
        zeros = torch.zeros(1, *file.images.shape, dtype=file.images.dtype, device=device)
        self.for_batch(1)(zeros)

    def for_batch(self, batch: int, *size_hw: int) -> Callable[[Tensor], NetworkOutput]:  # noqa: ARG002
        """Allocate outputs for batches of this size; see `Runtime`.

        A file of a fixed batch runs as often as needed, the last time with images of zeros for those missing.
        """
        if self._session is None:
            raise UnsupportedError("The model is closed; load it again.")
        file, step = self._file, self._file.batch or batch
        parts = [slice(start, start + step) for start in range(0, batch, step)]
        whole = len(parts) * step
        shape = (whole, *file.images.shape)
        padded = None if whole == batch else torch.zeros(shape, dtype=self.dtype, device=self._device)
        problem = f"{str(file.path)!r} must run in {self._name}, it does not"
        with translate_errors(UnsupportedError, problem):
            calls = [(part, self._session.make_call(step)) for part in parts]
        outputs = [torch.empty(whole, *each.shape, dtype=each.dtype, device=self._device) for each in file.outputs]
        logits, boxes, *masks = (each[:batch] for each in outputs)

        def run(images: Tensor) -> NetworkOutput:
            if padded is not None:
                padded[:batch] = images
                images = padded
            with translate_errors(UnsupportedError, problem):
                for part, call in calls:
                    call(images[part], [each[part] for each in outputs])
            return NetworkOutput(logits, boxes, masks[0] if masks else None)

        return run

    def release(self) -> None:
        """Release the session; buffers and calls in use stay valid."""
        self._session = None

    def __str__(self) -> str:
        return self._name
