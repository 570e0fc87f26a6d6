"""Adding nodes to a graph, with names that are unique in the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import onnx_ir as ir

from maskjet.onnx.matching import inner_graphs


class Workspace:
    """A model that is being rewritten.

    Every new value gets a name, since unnamed ones would be numbered per graph and so collide across subgraphs.
    """

    def __init__(self, model: ir.Model) -> None:
        self._owners = {id(graph): node for graph, node in inner_graphs(model)}
        values = (value for node in model.graph.all_nodes() for value in (*node.inputs, *node.outputs))
        self._taken = {value.name for value in values if value is not None}
        self._numbers = count(1)

    def owner(self, graph: ir.Graph | None) -> ir.Node | None:
        """The node that has a graph as an attribute; None for the model's main graph."""
        return self._owners.get(id(graph))

    def make_name(self, start: str) -> str:
        """A new unique name that begins with `start`."""
        return next(name for number in self._numbers if (name := f"{start}_{number}") not in self._taken)


class Builder:
    """Adds nodes, named "maskjet/<prefix>/...", before a given node, `place`."""

    def __init__(self, place: ir.Node, workspace: Workspace, prefix: str) -> None:
        self._place, self._workspace, self._prefix = place, workspace, prefix

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: int | ir.TensorProtocol | ir.Attr) -> ir.Value:
        """Add a node of a standard op and return its one output; an input of None is left out."""
        name = self._workspace.make_name(f"maskjet/{self._prefix}/{op_type}")
        node = ir.node(op_type, inputs, attributes, outputs=[ir.Value(name=name)], name=name)
        graph = self._place.graph
        assert graph is not None, "a candidate is in a graph"
        graph.insert_before(self._place, node)
        return node.outputs[0]

    def constant(self, numbers: int | Sequence[int]) -> ir.Value:
        """Add an int64 constant: a scalar, or a vector."""
        return self.add("Constant", value=ir.tensor(np.asarray(numbers, dtype=np.int64)))


def replace(old: ir.Value, new: ir.Value) -> None:
    """Replace all uses of an old value by a new one; a graph output keeps its name, type and shape."""
    if old.is_graph_output():
        new.name, old.name = old.name, new.name
        new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
