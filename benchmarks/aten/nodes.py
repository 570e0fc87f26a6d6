"""Nodes of ATen graphs: their arguments, the nodes that only check them, and removing both."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

_CHECKS: frozenset[Any] = frozenset(
    {
        torch.ops.aten.sym_size.int,
        torch.ops.aten._assert_scalar.default,
        torch.ops.aten._assert_tensor_metadata.default,
        torch.ops.aten.sym_constrain_range.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
        operator.eq,
        operator.ge,
        operator.gt,
        operator.le,
        operator.lt,
    }
)


def arguments(node: Node) -> dict[str, Any]:
    """The arguments of a call of an operator by name, defaults included."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    values = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return values | {argument.name: value for argument, value in zip(schema, node.args, strict=False)} | node.kwargs


def checks_of(node: Node) -> list[Node]:
    """Nodes that only assert this node's size or dtype, in reverse topological order."""
    found: list[Node] = []
    for user in node.users:
        if user.target in _CHECKS:
            below = checks_of(user)
            if all(other in below for other in user.users):
                found += [*below, user]
    return found


def erase(graph: Graph, nodes: Iterable[Node]) -> None:
    """Remove nodes, given in reverse topological order, and the nodes that only check them."""
    for node in nodes:
        for check in checks_of(node):
            graph.erase_node(check)
        graph.erase_node(node)
