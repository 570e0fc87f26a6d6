"""Rewrite a graph: find the pattern, replace, report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.fx import Graph, GraphModule, Node


@dataclass(frozen=True)
class Rewritten:
    """The outcome of a rewrite of a graph."""

    rewrite: str
    """Name of the rewrite."""
    matches: int
    """Number of matches that were rewritten."""
    skipped: tuple[str, ...]
    """Anchors that did not match, one line each, with the reason."""


@dataclass(frozen=True)
class Rewrite:
    """A pattern of ATen operators or of modules in a graph, and its replacement."""

    name: str
    """Name of the rewrite, for reports."""
    anchors: Callable[[Graph], Iterable[Node]]
    """Finds the nodes at which the pattern may start."""
    match: Callable[[Node], Callable[[], None] | str]
    """Checks an anchor; returns a function that rewrites its match, or the reason why it does not match."""

    def apply(self, module: GraphModule) -> Rewritten:
        """Rewrite every match in a graph, in place, once all are found."""
        found: list[Callable[[], None]] = []
        skipped: list[str] = []
        for anchor in list(self.anchors(module.graph)):
            match = self.match(anchor)
            if isinstance(match, str):
                skipped.append(f"{anchor.name}: {match}")
            else:
                found.append(match)
        for replace in found:
            replace()
        module.graph.lint()
        module.recompile()
        return Rewritten(self.name, len(found), tuple(skipped))


def calls(node: Any, target: Any) -> bool:
    """Whether a node calls exactly this operator or function."""
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


def called_module(node: Node) -> nn.Module | None:
    """The module that a node calls; None if it calls none."""
    if node.op != "call_module" or node.graph.owning_module is None:
        return None
    return node.graph.owning_module.get_submodule(str(node.target))
