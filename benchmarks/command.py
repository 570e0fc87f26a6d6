"""Start a benchmark's command like maskjet's own, with the same errors and exit codes; options they share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from maskjet.cli.main import main

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
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    main(app)
