"""Batch norms folded into the convolutions before them: one kernel less for each, and one pass over the features.

A graph of modules shows which convolution feeds which norm, and that nothing else reads it; then the norm's module is
replaced by nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

_FIELDS = ("weight", "bias", "running_mean", "running_var", "eps")  # of torchvision's FrozenBatchNorm2d too


class _Tracer(torch.fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return _is_norm(module) or super().is_leaf_module(module, name)


def fold_batch_norms(module: nn.Module) -> int:
    """Fold what can be folded, in place.

    Results change by rounding only: products come in another order.

    Args:
        module: In eval mode, in float32. One that `torch.fx` can't trace is left as it is.

    Returns:
        How many norms were folded.
    """
    try:
        graph = _Tracer().trace(module)
    except Exception:  # whatever its code does with what isn't a value
        return 0
    called = [node.target for node in graph.nodes if node.op == "call_module"]
    folded = 0
    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, torch.fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        if called.count(before.target) != 1 or called.count(node.target) != 1:  # shared by several places
            continue
        convolution, norm = (module.get_submodule(str(each.target)) for each in (before, node))
        if type(convolution) is nn.Conv2d and _is_norm(norm):
            _fold(convolution, norm)
            _replace(module, str(node.target), nn.Identity())
            folded += 1
    return folded


def _is_norm(module: Any) -> bool:
    has_fields = all(getattr(module, field, None) is not None for field in _FIELDS)
    return has_fields and ("BatchNorm" in type(module).__name__) and not module.training


def _fold(convolution: nn.Conv2d, norm: Any) -> None:
    weight, bias = fuse_conv_bn_weights(
        convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    convolution.weight.data = weight.data
    convolution.bias = nn.Parameter(bias.data, requires_grad=False)


def _replace(module: nn.Module, name: str, other: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, other)
