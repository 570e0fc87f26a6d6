"""The command line: maskjet run | job | info | bench | serve | export | traffic | parity."""

from __future__ import annotations

from typing import Annotated

import typer

from maskjet.cli import bench, export, info, run, serve
from maskjet.cli.commands import SETTINGS, Command, Group
from maskjet.cli.job import job_app
from maskjet.cli.parity import parity_app
from maskjet.cli.traffic import traffic_app
from maskjet.version import __version__

_EXAMPLES = """
# Draw a street to try maskjet on; find its cars with the built-in model.
maskjet traffic video street.mp4
maskjet run street.mp4 -o found.mp4 -o found.jsonl
"""

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
    epilog=_EXAMPLES,
)
app.command(cls=Command, epilog=run.EPILOG)(run.run)
app.command(cls=Command, epilog=info.EPILOG)(info.info)
app.command(cls=Command, epilog=bench.EPILOG)(bench.bench)
app.command(cls=Command, epilog=serve.EPILOG)(serve.serve)
app.command(cls=Command, epilog=export.EPILOG)(export.export)
app.add_typer(job_app, name="job")
app.add_typer(traffic_app, name="traffic")
app.add_typer(parity_app, name="parity")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"maskjet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Find things in images and video: their class, box and exact outline."""
