"""The report of a rewritten file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from maskjet.host.tables import as_table


@dataclass(frozen=True)
class OptimizedFile:
    """The outcome of rewriting a file; prints as a summary and a table of nodes."""

    path: str
    """The file written."""
    matched: int
    """Number of candidates rewritten."""
    left_alone: Sequence[str]
    """The other candidates: node and reason."""
    nodes_before: Mapping[str, int]
    """Number of nodes by op before the rewrite, including those inside If and Loop."""
    nodes_after: Mapping[str, int]
    """Number of nodes by op after the rewrite, including those inside If and Loop."""

    def __str__(self) -> str:
        before, after = Counter(self.nodes_before), Counter(self.nodes_after)
        counts = [("op", "before", "after"), ("all", str(before.total()), str(after.total()))]
        changed = [op for op in sorted(before | after) if before[op] != after[op]]
        counts += [(op, str(before[op]), str(after[op])) for op in changed]
        summary = f"poolings: {self.matched} rewritten, {len(self.left_alone)} left alone"
        reasons = [f"left alone: {reason}" for reason in self.left_alone]
        return "\n".join([self.path, summary, *reasons, as_table(counts)])
