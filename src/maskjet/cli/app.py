"""The command line: maskjet run | job | info | bench | val | serve | export | quantize | warm | traffic | parity."""

from __future__ import annotations

from typing import Annotated

import typer

from maskjet.cli import bench, export, info, quantize, run, serve, val, warm
from maskjet.cli.flags import add_command
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
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",  # renders options in panels
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EXAMPLES,
)
add_command(app, run.EPILOG, cls=run.RunCommand)(run.run)
add_command(app, info.EPILOG)(info.info)
add_command(app, bench.EPILOG)(bench.bench)
add_command(app, val.EPILOG)(val.val)
add_command(app, serve.EPILOG)(serve.serve)
add_command(app, export.EPILOG)(export.export)
add_command(app, quantize.EPILOG)(quantize.quantize)
add_command(app, warm.EPILOG)(warm.warm)
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
    """Find instances in images and video: their class, box and exact outline."""
