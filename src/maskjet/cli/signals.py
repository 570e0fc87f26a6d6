"""Signals that end a command: Ctrl-C, SIGTERM (docker stop, systemd, timeout) and SIGHUP (a closed terminal).

All three end it like Ctrl-C, with exit code 128 + the signal's number and no traceback. A signal that is ignored when
the command starts, as SIGHUP is under nohup, stays ignored.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from maskjet.host.process import handling_signals

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Ended(KeyboardInterrupt):
    """A signal of this number has ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")


def exit_code(number: int) -> int:
    """The exit code of a command that a signal has ended."""
    return 128 + number


@contextmanager
def raising() -> Iterator[list[int]]:
    """Raise `Ended` on a signal; yields the list of received signal numbers.

    The list is needed because interrupted code may swallow or replace the exception, above all during imports.
    """
    came: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        came.append(number)
        raise Ended(number)

    with handling_signals(end, lambda current: current in _DEFAULTS):
        yield came


class Stop:
    """Stops a stream between two frames, so that all outputs have the same frames; see `stopping`.

    `number` is the signal's, None while none has come; `event` ends `Model.stream` even if no frame comes.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.event = threading.Event()

    def set(self, number: int) -> None:
        """Stop the stream, as the signal of this number does."""
        self.number = number
        self.event.set()

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.number is not None:
            raise Ended(number)
        self.set(number)


@contextmanager
def stopping(stop: Stop) -> Iterator[None]:
    """Let the first signal stop a stream; the second raises `Ended` at once."""

    def replaces(current: Any) -> bool:  # also replaces the handler of `raising`
        return current in _DEFAULTS or getattr(current, "__module__", None) == __name__

    with handling_signals(stop._handle, replaces):
        yield


def ignore_late_interrupts() -> None:
    """Silence a Ctrl-C that comes where no exception can be raised: in a destructor, or while Python exits."""
    report = sys.unraisablehook
    if getattr(report, "__module__", None) == __name__:
        return

    def report_others(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)

    sys.unraisablehook = report_others
