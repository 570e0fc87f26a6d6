"""Batch norms folded into the convolutions before them, which saves a kernel and a pass over the features each.

Pattern:     conv(x) → norm, the only reader of the convolution
Replacement: conv(x), with the norm in its weights and its bias
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.fx import Graph, Node
from torch.nn.utils.fusion import fuse_conv_bn_weights

from maskjet.networks.torchvision.layers.matching import sole_convolution
from maskjet.networks.torchvision.layers.rewriting import Rewrite, called_module

_FIELDS = ("running_mean", "running_var", "weight", "bias", "eps")  # also fields of torchvision's FrozenBatchNorm2d

_NORMS = (
    "torch.nn.modules.batchnorm.BatchNorm2d",
    "torch.nn.modules.batchnorm.SyncBatchNorm",
    "torchvision.ops.misc.FrozenBatchNorm2d",
)


def is_norm(module: nn.Module | None) -> bool:
    """Whether this is a known batch norm in eval mode, which only scales and shifts."""
    has_fields = all(getattr(module, field, None) is not None for field in _FIELDS)
    is_known = f"{type(module).__module__}.{type(module).__qualname__}" in _NORMS  # a subclass may do more
    return has_fields and is_known and not (module and module.training)


def _anchors(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if is_norm(called_module(node)))


def _match(norm: Node) -> Callable[[], None] | None:
    before: Any = norm.args[0]
    convolution: Any = sole_convolution(before)
    if convolution is None:
        return None
    folded: Any = called_module(norm)

    def replace() -> None:
        before_bias = None if convolution.bias is None else convolution.bias.double()
        mean, variance, scale, shift = (getattr(folded, name).double() for name in _FIELDS[:4])
        weight, bias = fuse_conv_bn_weights(
            convolution.weight.double(), before_bias, mean, variance, folded.eps, scale, shift
        )
        convolution.bias = nn.Parameter(bias.data.to(convolution.weight), requires_grad=False)
        convolution.weight.data = weight.data.to(convolution.weight)
        norm.replace_all_uses_with(before)
        norm.graph.erase_node(norm)

    return replace


FOLD = Rewrite("fold_norms", _anchors, _match)
"""Folds batch norms into convolutions; results change by rounding, since products come in another order."""
