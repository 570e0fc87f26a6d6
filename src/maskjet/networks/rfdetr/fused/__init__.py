"""A runtime of RF-DETR in Triton kernels of our own, for NVIDIA GPUs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from maskjet.engine.runtime import Runtime
from maskjet.errors import UnsupportedError, first_line
from maskjet.networks.rfdetr.fused.forward import Forward
from maskjet.networks.rfdetr.fused.weights import Weights, fold
from maskjet.networks.rfdetr.network import RFDETR
from maskjet.ops.gpu import why_not
from maskjet.ops.record import name_of
from maskjet.spec import ModelSpec

_log = logging.getLogger("maskjet")
_HALVES = (torch.float16, torch.bfloat16)
_HEADS = (16, 32, 64, 128)  # supported channels per attention head
_MULTIPLE = 16  # tensor cores need channels in multiples of this
_MOST_HIDDEN = 512  # channels; one program normalises a whole row


class Fused:
    """Runs forward passes with folded weights; see `Runtime`. The network, on its device, is moved to the CPU.

    Raises:
        UnsupportedError: The kernels don't serve the network, the precision or the device.
    """

    why_no_graph = None

    def __init__(self, network: RFDETR, dtype: torch.dtype) -> None:
        device = network.query_feat.weight.device
        reason = refuse(network.spec, dtype, device)
        if reason is not None:
            raise UnsupportedError(f"runtime='fused' can't run {network.spec.name} here: {reason}.")
        self._weights: Weights | None = fold(network, dtype)
        network.cpu()  # the folded weights replace it on the GPU

    def for_batch(self, batch: int, *_size_hw: int) -> Forward:
        """Make a forward pass for a batch size, with buffers of its own.

        Raises:
            UnsupportedError: The weights have been released, or a kernel can't be compiled here.
        """
        if self._weights is None:
            raise UnsupportedError("the network has been released.")
        try:
            return Forward(self._weights, batch)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # Triton, ptxas and the driver raise many types
            raise UnsupportedError(
                f"runtime='fused' can't compile a kernel here, {type(error).__name__}: {first_line(error)}; "
                "use 'torch'."
            ) from error

    def release(self) -> None:
        """Free the weights once no forward pass uses them; may be called twice."""
        self._weights = None

    def __str__(self) -> str:
        return "fused: kernels of maskjet's own"


class FusedOrCompiled:
    """`Fused` with a fallback to PyTorch if kernels don't support the network or don't compile; see `Runtime`."""

    why_no_graph = None

    def __init__(self, network: RFDETR, dtype: torch.dtype, by_torch: Callable[[], Runtime]) -> None:
        self._by_torch, self._lock, self._why_not, self._is_final = by_torch, threading.Lock(), "", False
        try:
            self._runtime: Runtime = Fused(network, dtype)
        except UnsupportedError as error:
            self._replace(error)

    def for_batch(self, batch: int, *size_hw: int) -> Callable[..., Any]:
        """See `Runtime`."""
        if self._is_final:
            return self._runtime.for_batch(batch, *size_hw)
        try:
            return self._runtime.for_batch(batch, *size_hw)
        except UnsupportedError as error:
            with self._lock:
                if not self._is_final:
                    self._replace(error)
                    _log.warning("the network runs by PyTorch: %s", self._why_not)
            return self._runtime.for_batch(batch, *size_hw)

    def _replace(self, error: UnsupportedError) -> None:
        self._why_not, self._runtime, self._is_final = str(error), self._by_torch(), True

    def release(self) -> None:
        """Free the network for good; may be called twice."""
        self._is_final = True
        self._runtime.release()

    def __str__(self) -> str:
        return f"{self._runtime}; {self._why_not}" if self._why_not else str(self._runtime)


def refuse(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the fused kernels can't run a network; None if they can."""
    if dtype not in _HALVES:
        return f"it needs precision 'fp16' or 'bf16', got {name_of(dtype)}"
    hidden = spec.hidden_dim
    if not _is_power(hidden) or not 2 * _MULTIPLE <= hidden <= _MOST_HIDDEN:
        return f"hidden_dim must be a power of two from {2 * _MULTIPLE} to {_MOST_HIDDEN}, got {hidden}"
    if not _is_power(spec.cross_attention_heads):
        return f"cross_attention_heads must be a power of two, got {spec.cross_attention_heads}"
    for width, heads in (("backbone_width", "backbone_heads"), ("hidden_dim", "self_attention_heads")):
        side = getattr(spec, width) // getattr(spec, heads)
        if side not in _HEADS:
            return f"{width} / {heads} must be one of {_HEADS}, got {side}"
    if spec.feed_forward_dim % _MULTIPLE:
        return f"feed_forward_dim must be a multiple of {_MULTIPLE}, got {spec.feed_forward_dim}"
    return why_not(device, dtype)


def _is_power(number: int) -> bool:
    return number >= 1 and not number & (number - 1)
