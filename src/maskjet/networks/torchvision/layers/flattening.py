"""A linear layer on flattened channels-last features, its weights permuted so that the features are not copied.

Pattern:     flatten(x, 1) → linear
Replacement: ChannelsLastLinear(x), with the weights in the order of the features in memory
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.fx import Graph, Node

from maskjet.networks.torchvision.layers.matching import replace_by_module, shape_of
from maskjet.networks.torchvision.layers.rewriting import Rewrite, called_module, calls

_DIMENSIONS = 4


class ChannelsLastLinear(nn.Module):
    """linear(features.flatten(1)), with the weights of a layer, for features of a shape (C, H, W)."""

    def __init__(self, linear: nn.Linear, shape: tuple[int, int, int]) -> None:
        super().__init__()
        weight = linear.weight.data.view(-1, *shape).permute(0, 2, 3, 1)
        self.weight = nn.Parameter(weight.flatten(1).contiguous(), requires_grad=False)
        self.bias = linear.bias

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map features [B, C, H, W] to [B, D]; fastest channels-last."""
        # Not as one call: in float32 cuBLAS takes a third longer for the product of 1,000 boxes with a bias (H200).
        found = features.permute(0, 2, 3, 1).flatten(1) @ self.weight.t()
        return found if self.bias is None else found + self.bias


def _anchors(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        is_called = calls(node, torch.flatten) or (node.op == "call_method" and node.target == "flatten")
        if is_called or isinstance(called_module(node), nn.Flatten):
            yield node


def _match(flatten: Node) -> Callable[[], None] | str:
    features, module = flatten.args[0], called_module(flatten)
    given = [*flatten.args[1:], *flatten.kwargs.values()]
    is_whole = (module.start_dim, module.end_dim) == (1, -1) if isinstance(module, nn.Flatten) else given == [1]
    shape = shape_of(features)
    if not is_whole or len(shape) != _DIMENSIONS:
        return "it does not flatten channels and pixels"
    if len(flatten.users) != 1:
        return f"it is read {len(flatten.users)} times, not once"
    (linear,) = flatten.users
    layer = called_module(linear)
    if type(layer) is not nn.Linear:
        return "the next layer is not linear"

    def replace() -> None:
        name = f"{linear.target}".replace(".", "_") + "_channels_last"
        made = ChannelsLastLinear(layer, (shape[1], shape[2], shape[3]))
        replace_by_module([linear, flatten], made, name, flatten.all_input_nodes)

    return replace


PERMUTE = Rewrite("permute_weights", _anchors, _match)
"""Permutes linear weights to channels-last order; results change by rounding, as products are summed in this order."""
