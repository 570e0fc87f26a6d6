"""Register commands, and name options by flags in their errors."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from copy import copy
from types import MappingProxyType
from typing import Annotated, Any

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
    "deadlines": "max_latency",
}
"""Python argument names whose flags differ, with the flag names."""
_NONE: Mapping[str, Any] = MappingProxyType({})
_given: ContextVar[Mapping[str, Any]] = ContextVar("options of the running command, with their values", default=_NONE)

AnyCommand = Callable[..., None]
_SHOWS_ALL = "maskjet.help_all"


class Command(TyperCommand):
    """Command whose help leaves options in panels to --help-all."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        shown = copy(self)
        if not ctx.meta.get(_SHOWS_ALL):
            shown.params = [each for each in self.params if not getattr(each, "rich_help_panel", None)]
        TyperCommand.format_help(shown, ctx, formatter)


def _show_all(ctx: typer.Context, is_asked: bool) -> None:
    if is_asked:
        ctx.meta[_SHOWS_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def _help_all(panels: Iterable[str]) -> inspect.Parameter:
    """Declare the option --help-all, which names what it shows."""
    text = f"Show all options and exit; more are under: {'; '.join(panels)}."
    shown = typer.Option("--help-all", metavar="", help=text, is_eager=True, callback=_show_all)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter("help_all", kind, default=False, annotation=Annotated[bool, shown])


def add_command(
    app: typer.Typer, examples: str, name: str | None = None, cls: type[TyperCommand] = Command
) -> Callable[[AnyCommand], AnyCommand]:
    """Add a function to an app as a command; keyword-only parameters become options, examples end the help."""

    def add(command: AnyCommand) -> AnyCommand:
        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            arguments.pop("help_all", None)
            _given.set({option: arguments[option] for option in options})
            command(**arguments)

        signature = inspect.signature(command, eval_str=True)
        parameters = list(signature.parameters.values())
        options = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        declared = [one for each in parameters for one in (*typing.get_args(each.annotation), each.default)]
        if panels := dict.fromkeys(filter(None, (getattr(one, "rich_help_panel", None) for one in declared))):
            run.__signature__ = signature.replace(parameters=[*parameters, _help_all(panels)])  # type: ignore[attr-defined]
        return app.command(name, cls=cls, epilog=examples)(run)

    return add


def in_flags(error: Exception) -> str:
    """Rewrite an error message: arguments at its start, and those with a value outside quotes, become flags.

    An option that was not given is none that is wrong, unless that is what the message says.
    """
    given = _given.get()

    def flag(name: str) -> str:
        return f"--{name.replace('_', '-')}" if name in given else name

    def set_flag(found: re.Match[str]) -> str:
        return found[0] if found[1] not in given else flag(found[1]) + ("" if found[2] == "True" else f"={found[2]}")

    message = re.sub(r"(?<= )(?:'[^']*'|(\w+)=(\w+|'\w+'))", set_flag, str(error))
    if several := re.match(r"\w+(, \w+)* (and|or) \w+(?= must )", message):
        return re.sub(r"\w+", lambda name: flag(name[0]), several[0]) + message[several.end() :]
    argument = getattr(error, "argument", None) or ""
    name = next((each for each in (argument, _OTHER_NAMES.get(argument)) if each in given), None)
    if name is None or (given[name] is None and "got None" not in message):
        return message
    return f"{flag(name)}{message.removeprefix(argument)}"
