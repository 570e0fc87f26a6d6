"""stdout of the program: failed writes raise maskjet's errors."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

from maskjet.errors import OutputError, explain


class ReaderGoneError(OutputError):
    """The reader of stdout has closed it, as after `| head`."""


class Stdout:
    """Replacement of `sys.stdout`, which is None if the caller has closed it.

    `write` and `flush` raise OutputError. Commands, rich and typer write to it, and typer takes only Python's own error
    of a closed pipe for an end of its own, with exit code 1.
    """

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        """Whether stdout is a terminal."""
        return self._stream is not None and self._stream.isatty()

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        self._call("write", text)
        return len(text)

    def flush(self) -> None:
        """Flush buffered text to the system."""
        self._call("flush")

    def _call(self, method: str, *arguments: str) -> None:
        if self._stream is None:
            raise OutputError("stdout must be writable, it is closed.")
        try:
            getattr(self._stream, method)(*arguments)
        except BrokenPipeError as error:
            raise ReaderGoneError("stdout must be writable, its reader has gone.") from error
        except OSError as error:
            raise OutputError(f"stdout must be writable, it is not: {explain(error)}.") from error


def let_go() -> None:
    """Flush stdout; if that fails, point it to /dev/null, so that Python does not fail on it again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
