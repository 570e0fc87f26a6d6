"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of equal length, the first the header, as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def shown(value: float | None, digits: int) -> str:
    """Format a number with some decimals; None becomes a dash."""
    return "-" if value is None else f"{value:.{digits}f}"
