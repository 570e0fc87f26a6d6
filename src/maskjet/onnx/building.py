"""Adding nodes to a graph, with names that no value of any of its graphs has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from maskjet.onnx.matching import inner_graphs


class Workspace:
    """A model that is being rewritten.

    Every new value gets a name: unnamed ones would be numbered per graph and so collide across subgraphs.
    """

    def __init__(self, model: ir.Model) -> None:
        self._owners = {id(graph): node for graph, node in inner_graphs(model)}
        graphs = [model.graph, *model.graph.subgraphs()]
        self._taken = {value.name for graph in graphs for value in (*graph.inputs, *graph.initializers.values())}
        self._taken |= {value.name for node in model.graph.all_nodes() for value in node.outputs}
        self._count = 0

    def owner(self, graph: ir.Graph | None) -> ir.Node | None:
        """The node that a graph is inside of; None for the model's own."""
        return self._owners.get(id(graph))

    def fresh(self, what: str) -> str:
        """A name that starts with `what`."""
        name: str | None = None
        while name is None or name in self._taken:
            self._count += 1
            name = f"{what}_{self._count}"
        self._taken.add(name)
        return name


class Builder:
    """Adds nodes before a node.

    Args:
        place: The node.
        workspace: Of the model.
        prefix: What the new names start with.
    """

    def __init__(self, place: ir.Node, workspace: Workspace, prefix: str) -> None:
        self._place = place
        self._workspace = workspace
        self._prefix = prefix

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: int | ir.TensorProtocol | ir.Attr) -> ir.Value:
        """Add a node with one output.

        Args:
            op_type: A standard op.
            inputs: None leaves one out.
            attributes: By name.

        Returns:
            The output.
        """
        name = self._workspace.fresh(f"maskjet/{self._prefix}/{op_type}")
        node = ir.node(op_type, inputs, attributes, outputs=[ir.Value(name=name)], name=name)
        graph = self._place.graph
        assert graph is not None, "a candidate is in a graph"
        graph.insert_before(self._place, node)
        return node.outputs[0]

    def constant(self, numbers: int | Sequence[int]) -> ir.Value:
        """Add an int64 constant: a scalar, or a vector."""
        return self.add("Constant", value=ir.tensor(np.asarray(numbers, dtype=np.int64)))


def replace(old: ir.Value, new: ir.Value) -> None:
    """Use a new value wherever an old one is used; if the graph returns it, under its name and type."""
    if old.is_graph_output():
        new.name, old.name = old.name, new.name
        new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
