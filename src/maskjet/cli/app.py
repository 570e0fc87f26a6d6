"""The command line: maskjet run | info | bench | serve | traffic | parity."""

from __future__ import annotations

import typer

from maskjet.cli.bench import bench
from maskjet.cli.info import info
from maskjet.cli.parity import parity_app
from maskjet.cli.run import EPILOG, run
from maskjet.cli.serve import EPILOG as SERVE_EPILOG
from maskjet.cli.serve import serve
from maskjet.cli.traffic import traffic_app

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command(epilog=EPILOG)(run)
app.command()(info)
app.command()(bench)
app.command(epilog=SERVE_EPILOG)(serve)
app.add_typer(traffic_app, name="traffic")
app.add_typer(parity_app, name="parity")
