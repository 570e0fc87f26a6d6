"""Options for thresholds and classes, and their parsing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from maskjet.cli.options import ENGINE_PANEL, option
from maskjet.errors import InputError

ThresholdOption = Annotated[
    list[str] | None,
    option(
        "NUMBER|CLASS=NUMBER",
        "Confidence that detections must exceed, 0 to 1; of one class as in car=0.6. May be repeated, or a list with "
        "commas. Not given: 0.5, or a torchvision model's own.",
    ),
]
ClassNamesOption = Annotated[
    Path | None,
    option(
        "PATH",
        "A text file with the name of a class per line, from id 0 on, for weights that bring no names.",
        panel=ENGINE_PANEL,
    ),
]
ClassesOption = Annotated[list[str] | None, option("NAME,NAME,…", "Report only these classes. May be repeated.")]


def split_list(texts: Sequence[str] | None) -> list[str]:
    """Split an option that may be repeated or contain commas."""
    return [item.strip() for text in texts or () for item in text.split(",")]


def parse_thresholds(texts: Sequence[str] | None) -> tuple[float | None, dict[str, float]]:
    """Parse --threshold: the one for all classes, None without, and those of single classes by name."""
    by_name: dict[str, float] = {}
    for item in split_list(texts):
        name, _, number = item.rpartition("=")
        if name in by_name:
            raise InputError(f"threshold must be given once{f' for {name!r}' if name else ''}, got {item!r} again.")
        try:
            by_name[name] = float(number)
        except ValueError as error:
            raise InputError(f"threshold must be a number or CLASS=NUMBER, got {item!r}.") from error
    return by_name.pop("", None), by_name
