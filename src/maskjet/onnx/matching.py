"""Reading a graph: what is constant, what made a value, and which graph is inside which node."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

_TRANSPARENT = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_STANDARD = ("", "ai.onnx")


class MismatchError(Exception):
    """A candidate is left alone; says what about it is not as the rewrite needs it."""


def require(condition: object, reason: str) -> None:
    """Leave the candidate alone unless a condition holds.

    Raises:
        MismatchError: It does not.
    """
    if not condition:
        raise MismatchError(reason)


def nodes_of_type(model: ir.Model, op_type: str) -> list[ir.Node]:
    """All nodes of a standard op, those of inner graphs too."""
    return [node for node in model.graph.all_nodes() if is_op(node, op_type)]


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether a node is one of some standard ops."""
    return node is not None and node.op_type in op_types and node.domain in _STANDARD


def producer(value: ir.Value | None, *op_types: str, reason: str) -> ir.Node:
    """The node that makes a value.

    Args:
        value: Of any graph; None is an input left out.
        op_types: One of which it must be.
        reason: Why the candidate is left alone otherwise.

    Raises:
        MismatchError: It is another op, or an input.
    """
    node = None if value is None else value.producer()
    if node is None or not is_op(node, *op_types):
        raise MismatchError(reason)
    return node


def given(node: ir.Node, index: int) -> ir.Value | None:
    """An input of a node; None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def whole(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute of a node."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def constant(value: ir.Value | None) -> NDArray[np.generic] | None:
    """What a value always is; None if that depends on an input, an initializer that can be overridden among them."""
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def integers(value: ir.Value | None) -> tuple[int, ...] | None:
    """The integers a value always holds, flat, through nodes that only change its type or shape; None if it varies."""
    found = constant(value)
    if found is not None:
        return tuple(map(int, found.ravel())) if np.issubdtype(found.dtype, np.integer) else None
    node = None if value is None else value.producer()
    return integers(node.inputs[0]) if node is not None and is_op(node, *_TRANSPARENT) else None


def is_zeros(node: ir.Node) -> bool:
    """Whether a ConstantOfShape makes zeros."""
    attribute = node.attributes.get("value")
    return attribute is None or not attribute.as_tensor().numpy().any()


def slice_parts(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None, int]:
    """Start, end and axis of a Slice along one axis with a step of 1.

    Raises:
        MismatchError: It is another Slice.
    """
    steps, axes = given(node, 4), integers(given(node, 3))
    require(steps is None or integers(steps) == (1,), "a slice has a step")
    if axes is None or len(axes) != 1:
        raise MismatchError("a slice is not along one axis")
    return given(node, 1), given(node, 2), axes[0]


def inner_graphs(model: ir.Model) -> Iterator[tuple[ir.Graph, ir.Node]]:
    """Every graph inside of a node, with that node."""
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield attribute.as_graph(), node
