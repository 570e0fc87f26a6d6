"""The program maskjet: runs a command and turns its outcome into an exit code.

Imports are kept light, so that Ctrl-C ends the program quietly from its first moment on.
"""

from __future__ import annotations

import signal
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from maskjet import limits
from maskjet.cli import signals, stdout
from maskjet.errors import CheckpointError, DeviceError, FrameError, MaskjetError, OutputError, SourceError
from maskjet.host import process

if TYPE_CHECKING:
    import typer

_USAGE = 2
_CODES = {SourceError: 3, FrameError: 3, CheckpointError: 3, OutputError: 4, DeviceError: 5}


def main(app: typer.Typer | None = None) -> None:
    """Run a command line, maskjet's if none is given; its errors are printed as one line on stderr."""
    signals.ignore_late_interrupts()
    process.suit_program()
    came: list[int] = []
    try:
        with signals.raising() as came:
            code = _run(app)
    except BaseException as error:
        if not came and not isinstance(error, KeyboardInterrupt):
            raise
        code = signals.exit_code(came[0] if came else signal.SIGINT)
    stdout.let_go()
    sys.exit(code)


def _run(app: typer.Typer | None) -> int | str | None:
    """Run a command line; returns the value for `sys.exit`."""
    from maskjet.cli import app as own
    from maskjet.cli.options import print_error

    process.print_warnings()
    try:
        limits.read_environment()
        with redirect_stdout(stdout.Stdout(sys.stdout)):
            (app or own.app)()
    except SystemExit as end:
        return end.code
    except stdout.ReaderGoneError:
        return signals.exit_code(signal.SIGPIPE)
    except MaskjetError as error:
        print_error(error)
        return next((code for kind, code in _CODES.items() if isinstance(error, kind)), _USAGE)
    return 0
