"""Adding nodes to a graph; `application` gives values of equal names different ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir


class Builder:
    """Adds nodes, named "maskjet/<prefix>/...", before a given node, `place`."""

    def __init__(self, place: ir.Node, prefix: str) -> None:
        self._place, self._prefix = place, prefix

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: int | ir.TensorProtocol | ir.Attr) -> ir.Value:
        """Add a node of a standard op and return its one output; an input of None is left out."""
        name = f"maskjet/{self._prefix}/{op_type}"
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
