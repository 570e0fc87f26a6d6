"""Reading a graph: constants, the producers of values, and attributes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

_TRANSPARENT = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_STANDARD = ("", "ai.onnx")


class MismatchError(Exception):
    """A candidate can't be rewritten and is left alone; the message is the reason."""


def require(condition: object, reason: str) -> None:
    """Raise MismatchError, which leaves the candidate alone, unless a condition holds."""
    if not condition:
        raise MismatchError(reason)


def nodes_of_type(model: ir.Model, op_type: str) -> list[ir.Node]:
    """All nodes of a standard op, also those in inner graphs."""
    return [node for node in model.graph.all_nodes() if is_op(node, op_type)]


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether a node is one of some standard ops."""
    return node is not None and node.op_type in op_types and node.domain in _STANDARD


def find_producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that produces a value, if it is one of some standard ops; None otherwise, or without a value."""
    node = None if value is None else value.producer()
    return node if is_op(node, *op_types) else None


def producer(value: ir.Value | None, *op_types: str, reason: str) -> ir.Node:
    """The node that `find_producer` gives; without one, a MismatchError for this reason."""
    node = find_producer(value, *op_types)
    if node is None:
        raise MismatchError(reason)
    return node


def given(node: ir.Node, index: int) -> ir.Value | None:
    """An input of a node; None if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def whole(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute of a node."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def integers(value: ir.Value | None) -> tuple[int, ...] | None:
    """A constant's integers, flattened; follows nodes that only change type or shape. None if it is no constant."""
    if value is None or value.is_graph_input():  # an input may have an initializer, which is only its default
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is not None:
        found = tensor.numpy()
        return tuple(map(int, found.ravel())) if np.issubdtype(found.dtype, np.integer) else None
    node = find_producer(value, *_TRANSPARENT)
    return None if node is None else integers(node.inputs[0])


def is_zeros(node: ir.Node) -> bool:
    """Whether a ConstantOfShape makes zeros."""
    attribute = node.attributes.get("value")
    return attribute is None or not attribute.as_tensor().numpy().any()
