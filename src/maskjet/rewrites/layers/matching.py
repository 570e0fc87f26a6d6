"""What the patterns have in common."""

from __future__ import annotations

import operator

import torch
from torch import nn
from torch.fx import Node

from maskjet.rewrites.rewriting import called_module

SUMS = (operator.add, operator.iadd, torch.add)
"""What adds two tensors."""


def sole_convolution(node: object, users: int = 1) -> nn.Conv2d | None:
    """The convolution that a node calls, if no other calls it and its result has so many users; else None."""
    if not isinstance(node, Node) or len(node.users) != users:
        return None
    module = called_module(node)
    is_sole = sum(each.op == "call_module" and each.target == node.target for each in node.graph.nodes) == 1
    return module if is_sole and type(module) is nn.Conv2d else None


def terms_of(node: Node) -> tuple[Node, Node] | None:
    """The two tensors that a node adds, if that is what it does."""
    if node.op != "call_function" or node.target not in SUMS or node.kwargs or len(node.args) != len(("a", "b")):
        return None
    first, second = node.args
    return (first, second) if isinstance(first, Node) and isinstance(second, Node) else None


def shape_of(node: object) -> tuple[int, ...]:
    """The shape of the tensor that a node gave for the example; empty if it gave none."""
    found = node.meta.get("tensor_meta") if isinstance(node, Node) else None
    return tuple(getattr(found, "shape", ()))


def is_pixelwise(module: object) -> bool:
    """Whether this is a convolution of one pixel, with a bias."""
    if type(module) is not nn.Conv2d or module.bias is None:
        return False
    return {*module.kernel_size, *module.stride, module.groups} == {1} and set(module.padding) == {0}
