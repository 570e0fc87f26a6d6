"""Rewrite a graph: find the pattern, and replace it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.fx import Graph, GraphModule, Node


@dataclass(frozen=True)
class Rewrite:
    """A pattern of ATen operators or of modules in a graph, and its replacement."""

    name: str
    """Name of the rewrite."""
    anchors: Callable[[Graph], Iterable[Node]]
    """Finds the nodes at which the pattern may start."""
    match: Callable[[Node], Callable[[], None] | None]
    """Checks an anchor; returns a function that rewrites its match, or None if it does not match."""

    def apply(self, module: GraphModule) -> int:
        """Rewrite every match in a graph, in place, once all are found; returns how many there were."""
        found = list(filter(None, map(self.match, self.anchors(module.graph))))
        for replace in found:
            replace()
        module.graph.lint()
        module.recompile()
        return len(found)


def calls(node: Any, target: Any) -> bool:
    """Whether a node calls exactly this operator or function."""
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


def called_module(node: Node) -> nn.Module | None:
    """The module that a node calls; None if it calls none."""
    if node.op != "call_module" or node.graph.owning_module is None:
        return None
    return node.graph.owning_module.get_submodule(str(node.target))
