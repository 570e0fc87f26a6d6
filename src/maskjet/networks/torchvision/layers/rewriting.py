"""Rewrite a graph: find the pattern, check the count, replace, report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import nn
from torch.fx import Graph, GraphModule, Node

from maskjet.errors import UnsupportedError

_Match = TypeVar("_Match")


@dataclass(frozen=True)
class Rewritten:
    """The outcome of a rewrite of a graph."""

    rewrite: str
    """Name of the rewrite."""
    matches: int
    """Places that were rewritten."""
    skipped: tuple[str, ...]
    """Places that look like the pattern but do not match, with the reason; one line each."""


@dataclass(frozen=True)
class Rewrite(Generic[_Match]):
    """A pattern of ATen operators or of modules in a graph, and its replacement."""

    name: str
    """Name of the rewrite, for reports and errors."""
    anchors: Callable[[Graph], Iterable[Node]]
    """Finds the nodes at which the pattern may start."""
    match: Callable[[Node], _Match | str]
    """The guard: returns the match at an anchor, for `replace`, or the reason why there is none."""
    replace: Callable[[Graph, _Match], None]
    """Replaces a match in the graph."""

    def apply(self, module: GraphModule, *, expected: int | None = None) -> Rewritten:
        """Rewrite every match in a graph, in place.

        Args:
            module: The graph, with the modules that it calls.
            expected: Required number of matches; None takes any number.

        Raises:
            UnsupportedError: There are more or fewer matches; nothing was changed.
        """
        found: list[_Match] = []
        skipped: list[str] = []
        for anchor in list(self.anchors(module.graph)):
            match = self.match(anchor)
            if isinstance(match, str):
                skipped.append(f"{anchor.name}: {match}")
            else:
                found.append(match)
        if expected is not None and len(found) != expected:
            reasons = "".join(f" Not {reason}." for reason in skipped)
            raise UnsupportedError(f"{self.name} must match {expected} times in this graph, got {len(found)}.{reasons}")
        for match in found:
            self.replace(module.graph, match)
        module.graph.lint()
        module.recompile()
        return Rewritten(self.name, len(found), tuple(skipped))


def calls(node: Any, target: Any) -> bool:
    """Whether a node calls this very operator or function."""
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


def called_module(node: Node) -> nn.Module | None:
    """The module that a node calls; None if it calls none."""
    if node.op != "call_module" or node.graph.owning_module is None:
        return None
    return node.graph.owning_module.get_submodule(str(node.target))
