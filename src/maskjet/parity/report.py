"""What every benchmark returns: measurements with the machine they hold for, printed as a table, written as JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maskjet.errors import InputError
from maskjet.files import write_json
from maskjet.parity.machine import Machine
from maskjet.parity.table import as_table


@dataclass(frozen=True)
class MeasuredReport(ABC):
    """All measurements of a run."""

    machine: Machine
    """Where they hold."""
    measurements: Sequence[Any]
    """In the order they were asked for."""
    notes: Sequence[str] = ()
    """What was left out, and why."""

    @abstractmethod
    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)

    def write(self, path: Path | None) -> None:
        """Write the fields to a JSON file; to none for None.

        Raises:
            OutputError: It can't be written.
        """
        if path is not None:
            write_json(path, self.as_dict())

    def __str__(self) -> str:
        return "\n".join([as_table(self.rows()), str(self.machine), *self.notes])


def check_runs(runs: int, name: str = "runs") -> None:
    """Check how often to run something, or on how many.

    Raises:
        InputError: Not at all.
    """
    if runs < 1:
        raise InputError(f"{name} must be at least 1, got {runs}.")


def check_names(given: Iterable[str], known: Iterable[str], name: str = "only") -> None:
    """Check that all of what is named is known.

    Raises:
        InputError: Something is not; says what is.
    """
    known = [*known]
    unknown = [each for each in given if each not in known]
    if unknown:
        raise InputError(f"{name} must be of {', '.join(map(repr, known))}, got {', '.join(map(repr, unknown))}.")
