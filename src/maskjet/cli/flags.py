"""Register commands, and name options by flags in their errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperCommand

_OTHER_NAMES = {
    "size_hw": "size",
    "class_map": "map",
    "data": "annotations",
    "source": "images",
    "seconds": "segment_seconds",
    "images": "segment_images",
    "counters": "count",
}
"""Python argument names whose flags differ, with the flag names."""
_NONE: Mapping[str, Any] = MappingProxyType({})
_given: ContextVar[Mapping[str, Any]] = ContextVar("options of the running command, with their values", default=_NONE)

AnyCommand = Callable[..., None]


def add_command(
    app: typer.Typer, examples: str, name: str | None = None, cls: type[TyperCommand] | None = None
) -> Callable[[AnyCommand], AnyCommand]:
    """Add a function to an app as a command; keyword-only parameters become options, examples end the help."""

    def add(command: AnyCommand) -> AnyCommand:
        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            _given.set({option: arguments[option] for option in options})
            command(**arguments)

        parameters = inspect.signature(command).parameters
        options = [each for each, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
        return app.command(name, cls=cls, epilog=examples)(run)

    return add


def in_flags(error: Exception) -> str:
    """Rewrite an error message: the argument at its start becomes the running command's flag.

    An option that was not given is none that is wrong, unless that is what the message says.
    """
    message, given = str(error), _given.get()
    argument = getattr(error, "argument", None) or ""
    name = next((each for each in (argument, _OTHER_NAMES.get(argument)) if each in given), None)
    if name is None or (given[name] is None and "got None" not in message):
        return message
    return f"--{name.replace('_', '-')}{message.removeprefix(argument)}"
