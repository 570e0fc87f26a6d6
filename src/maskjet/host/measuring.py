"""Base of benchmark reports: measurements and machine, printed as a table or written as JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maskjet.host.files import write_json
from maskjet.host.machine import Machine
from maskjet.host.tables import as_table


@dataclass(frozen=True)
class MeasuredReport(ABC):
    """All measurements of a run."""

    machine: Machine
    """The machine and the versions that were measured."""
    measurements: Sequence[Any]
    """The measurements, in the order they were asked for."""
    notes: Sequence[str] = ()
    """Remarks on the measurements, such as parts left out and why."""

    @abstractmethod
    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per measurement."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)

    def write(self, path: Path | None) -> None:
        """Write the fields to a JSON file, or raise OutputError; with None, do nothing."""
        if path is not None:
            write_json(path, self.as_dict())

    def __str__(self) -> str:
        return "\n".join([as_table(self.rows()), str(self.machine), *self.notes])
