"""The command line: maskjet run | info | traffic | bench | parity."""

from __future__ import annotations

import sys

import typer

from maskjet import limits, process
from maskjet.cli.bench import bench_app
from maskjet.cli.info import info
from maskjet.cli.parity import parity_app
from maskjet.cli.run import run
from maskjet.cli.traffic import traffic_app
from maskjet.errors import MaskjetError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(run)
app.command()(info)
app.add_typer(traffic_app, name="traffic")
app.add_typer(bench_app, name="bench")
app.add_typer(parity_app, name="parity")

_EXIT_ERROR = 2


def main() -> None:
    """Run the command line; an error of ours is one line and exit code 2."""
    process.spin_less()
    try:
        limits.read_environment()
        app()
    except MaskjetError as error:
        typer.echo(f"maskjet: {error}", err=True)
        sys.exit(_EXIT_ERROR)
