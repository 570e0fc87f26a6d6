"""The report of the rewrites of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from maskjet.tables import as_table


@dataclass(frozen=True)
class Outcome:
    """The outcome of one rewrite."""

    rewrite: str
    """Name of the rewrite."""
    matched: int
    """Number of candidates rewritten."""
    left_alone: Sequence[str]
    """The other candidates: node and reason."""


@dataclass(frozen=True)
class OptimizedFile:
    """The outcome of all rewrites of a file; prints as two tables."""

    path: str
    """The file written."""
    outcomes: Sequence[Outcome]
    """Outcomes of the rewrites, in the order applied."""
    nodes_before: Mapping[str, int]
    """Number of nodes by op before the rewrites, including those inside If and Loop."""
    nodes_after: Mapping[str, int]
    """Number of nodes by op after the rewrites, including those inside If and Loop."""

    def matched(self, rewrite: str) -> int:
        """Number of candidates that a rewrite changed; 0 if it was not asked for."""
        return sum(outcome.matched for outcome in self.outcomes if outcome.rewrite == rewrite)

    def __str__(self) -> str:
        outcomes = [("rewrite", "matched", "left alone")]
        outcomes += [(o.rewrite, str(o.matched), str(len(o.left_alone))) for o in self.outcomes]
        counts = [("op", "before", "after"), ("all", *(str(sum(nodes.values())) for nodes in self._nodes()))]
        changed = {op for op in self._ops() if len({nodes.get(op, 0) for nodes in self._nodes()}) > 1}
        counts += [(op, *(str(nodes.get(op, 0)) for nodes in self._nodes())) for op in sorted(changed)]
        reasons = [f"{o.rewrite} left {reason}" for o in self.outcomes for reason in o.left_alone]
        return "\n".join([self.path, as_table(outcomes), *reasons, as_table(counts)])

    def _nodes(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        return self.nodes_before, self.nodes_after

    def _ops(self) -> set[str]:
        return {*self.nodes_before, *self.nodes_after}
