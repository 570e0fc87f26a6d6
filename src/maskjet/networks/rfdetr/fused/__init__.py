"""RF-DETR in kernels of our own, as a runtime of its network on NVIDIA GPUs."""

from __future__ import annotations

import torch

from maskjet.errors import UnsupportedError, first_line
from maskjet.networks.rfdetr.fused.forward import Forward
from maskjet.networks.rfdetr.fused.weights import Weights, fold
from maskjet.networks.rfdetr.network import RFDETR
from maskjet.ops.gpu import why_not
from maskjet.ops.record import HALVES
from maskjet.spec import ModelSpec

_HEADS = (16, 32, 64, 128)  # channels of a head that ops.attention takes
_MULTIPLE = 16  # of channels, for tensor cores
_MOST_HIDDEN = 512  # a program has whole rows of as many


class Fused:
    """Gives forward passes with folded weights; see `Runtime`.

    Args:
        network: The network, on its device.
        dtype: Precision to run in.

    Raises:
        UnsupportedError: The network, the precision or the device is none that the kernels serve.
    """

    why_no_graph = None

    def __init__(self, network: RFDETR, dtype: torch.dtype) -> None:
        device = network.query_feat.weight.device
        reason = refuse(network.spec, dtype, device)
        if reason is not None:
            raise UnsupportedError(f"runtime='fused' can't run {network.spec.name} here: {reason}.")
        self._weights: Weights | None = fold(network, dtype)

    def for_batch(self, batch: int, *_size_hw: int) -> Forward:
        """A forward pass for a batch size, with buffers of its own.

        Raises:
            UnsupportedError: The weights have been released, or a kernel can't be compiled here.
        """
        if self._weights is None:
            raise UnsupportedError("the network has been released.")
        try:
            return Forward(self._weights, batch)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever Triton, ptxas and the driver raise
            raise UnsupportedError(
                f"runtime='fused' can't compile a kernel here, {type(error).__name__}: {first_line(error)}; "
                "use runtime='torch'."
            ) from error

    def release(self) -> None:
        """Free the weights once no forward pass has them; may be called twice."""
        self._weights = None

    def __str__(self) -> str:
        return "fused: kernels of maskjet's own"


def refuse(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels can't run a network, or None."""
    if dtype not in HALVES:
        return f"it needs precision='fp16' or 'bf16', got {str(dtype).removeprefix('torch.')}"
    hidden = spec.hidden_dim
    if hidden & (hidden - 1) or not 2 * _MULTIPLE <= hidden <= _MOST_HIDDEN:
        return f"hidden_dim must be a power of two from {2 * _MULTIPLE} to {_MOST_HIDDEN}, got {hidden}"
    if spec.cross_attention_heads & (spec.cross_attention_heads - 1):
        return f"cross_attention_heads must be a power of two, got {spec.cross_attention_heads}"
    for width, heads in (("backbone_width", "backbone_heads"), ("hidden_dim", "self_attention_heads")):
        side = getattr(spec, width) // getattr(spec, heads)
        if side not in _HEADS:
            return f"{width} / {heads} must be one of {_HEADS}, got {side}"
    if spec.feed_forward_dim % _MULTIPLE:
        return f"feed_forward_dim must be a multiple of {_MULTIPLE}, got {spec.feed_forward_dim}"
    return why_not(device, dtype)
