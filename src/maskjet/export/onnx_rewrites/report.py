"""The report of the rewrites of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from maskjet.host.tables import as_table


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
        before, after = Counter(self.nodes_before), Counter(self.nodes_after)
        counts = [("op", "before", "after"), ("all", str(before.total()), str(after.total()))]
        changed = [op for op in sorted(before | after) if before[op] != after[op]]
        counts += [(op, str(before[op]), str(after[op])) for op in changed]
        reasons = [f"{o.rewrite} left {reason}" for o in self.outcomes for reason in o.left_alone]
        return "\n".join([self.path, as_table(outcomes), *reasons, as_table(counts)])
