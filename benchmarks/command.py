"""Start a benchmark's command like maskjet's own, with the same errors and exit codes; options they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from maskjet.cli.main import main
from maskjet.errors import InputError

_ROOT = Path(__file__).parents[1]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
ReportOption = Annotated[Path | None, typer.Option(help="A JSON file for the report.")]
SizeOption = Annotated[str, typer.Option(help="312, 720p, 1080p or WIDTHxHEIGHT.")]
SizesOption = Annotated[list[str] | None, typer.Option("--size", help="312, 720p, 1080p or WIDTHxHEIGHT; repeatable.")]
OnlyOption = Annotated[list[str] | None, typer.Option(help="Measure only this one; may be repeated.")]


def start(command: Callable[..., None]) -> None:
    """Run a command with the arguments of this process, and exit with its code.

    Args:
        command: A function whose parameters are typer's arguments and options.
    """
    # So that child processes find the laboratory: programs of maskjet's keep them from the current folder.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    main(app)


def check_names(given: Iterable[str], known: Iterable[str], name: str = "only") -> None:
    """Check that all given names are known.

    Raises:
        InputError: One is not; the message lists the known names.
    """
    known = [*known]
    unknown = [each for each in given if each not in known]
    if unknown:
        raise InputError(f"{name} must be of {', '.join(map(repr, known))}, got {', '.join(map(repr, unknown))}.")
