"""Find and replace nodes of a graph."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import nn
from torch.fx import Node

from maskjet.networks.torchvision.layers.rewriting import called_module

_SUMS = (operator.add, torch.add)  # "+=" is traced as these, too
_TERMS = 2


def sole_convolution(node: object, users: int = 1) -> nn.Conv2d | None:
    """The convolution called by this node only, if the node has `users` users; else None."""
    if not isinstance(node, Node) or len(node.users) != users:
        return None
    module = called_module(node)
    is_sole = sum(each.op == "call_module" and each.target == node.target for each in node.graph.nodes) == 1
    return module if is_sole and type(module) is nn.Conv2d else None


def terms_of(node: Node) -> tuple[Node, Node] | None:
    """The two operands of an addition; None for other nodes, or if a tensor is added to itself."""
    if node.op != "call_function" or node.target not in _SUMS or node.kwargs or len(node.args) != _TERMS:
        return None
    first, second = node.args
    if not isinstance(first, Node) or not isinstance(second, Node) or first is second:
        return None
    return first, second


def replace_by_module(nodes: Sequence[Node], module: nn.Module, name: str, arguments: Sequence[Node]) -> None:
    """Replace nodes of a graph by the call of a module, which is kept under a new name.

    Nodes are in reverse topological order; the call replaces the first one's result.
    """
    first, graph = nodes[0], nodes[0].graph
    assert graph.owning_module is not None
    graph.owning_module.add_submodule(name, module)
    with graph.inserting_before(first):
        called = graph.call_module(name, tuple(arguments))
    first.replace_all_uses_with(called)
    for node in nodes:
        graph.erase_node(node)


def is_pixelwise(module: object) -> bool:
    """Whether this is a plain 1 × 1 convolution with a bias."""
    if type(module) is not nn.Conv2d or module.bias is None:
        return False
    return {*module.kernel_size, *module.stride, module.groups} == {1} and set(module.padding) == {0}
